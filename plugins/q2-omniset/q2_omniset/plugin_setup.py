"""What QIIME 2 is told."""

from q2_types.feature_data import FeatureData, Sequence, Taxonomy
from q2_types.feature_table import FeatureTable, Frequency
from qiime2.plugin import Citations, Float, Int, Plugin, Range, Str

from . import __version__
from .formats import (
    MetricsFormat,
    ModelConfigFormat,
    OmnisetModelFolderFormat,
    OmnisetTaxonClassifier,
    OmnisetTaxonClassifierDirectoryFormat,
    ParquetFormat,
    SafetensorsFormat,
)
from .methods import classify, copy_model, fit

plugin = Plugin(
    name="omniset",
    version=__version__,
    website="https://github.com/omniset/omniset",
    package="q2_omniset",
    citations=Citations.load("citations.bib", package="q2_omniset"),
    description="Names the taxa of marker-gene sequences, each in the context of the sample that it is in.",
    short_description="Taxa of sequences, in the context of their sample.",
)

plugin.register_formats(
    ModelConfigFormat,
    MetricsFormat,
    SafetensorsFormat,
    ParquetFormat,
    OmnisetTaxonClassifierDirectoryFormat,
    OmnisetModelFolderFormat,
)
plugin.register_semantic_types(OmnisetTaxonClassifier)
plugin.register_semantic_type_to_format(OmnisetTaxonClassifier, OmnisetTaxonClassifierDirectoryFormat)


@plugin.register_transformer
def _1(folder: OmnisetModelFolderFormat) -> OmnisetTaxonClassifierDirectoryFormat:
    made = OmnisetTaxonClassifierDirectoryFormat()
    copy_model(folder.path, made.path)
    return made


plugin.methods.register_function(
    function=fit,
    inputs={"reference_reads": FeatureData[Sequence], "reference_taxonomy": FeatureData[Taxonomy]},
    parameters={"region": Str, "rank": Str, "seed": Int % Range(0, None)},
    outputs=[("classifier", OmnisetTaxonClassifier)],
    input_descriptions={
        "reference_reads": "Reference sequences.",
        "reference_taxonomy": "Their taxa.",
    },
    parameter_descriptions={
        "region": "Which part of the references to learn: 515F-806R, 341F-805R, or the primers as FORWARD...REVERSE. "
        "Not given: the references as they are.",
        "rank": "Rank of the taxa.",
        "seed": "The same seed gives the same model.",
    },
    output_descriptions={"classifier": "The model."},
    name="Learn taxa from reference sequences",
    description="Learns to tell the taxa of reference sequences apart, as omniset microbiomes fit does.",
)

plugin.methods.register_function(
    function=classify,
    inputs={
        "reads": FeatureData[Sequence],
        "table": FeatureTable[Frequency],
        "classifier": OmnisetTaxonClassifier,
    },
    parameters={"threshold": Float % Range(0, 1, inclusive_end=True)},
    outputs=[("classification", FeatureData[Taxonomy])],
    input_descriptions={
        "reads": "Sequences of the features.",
        "table": "How often each feature is in each sample: what else is in a sample helps to name what a sequence "
        "leaves open.",
        "classifier": "The model.",
    },
    parameter_descriptions={"threshold": "Confidence that a rank needs to be named."},
    output_descriptions={"classification": "The taxon of each feature, over all samples, with its confidence."},
    name="Name the taxa of sequences in the context of their samples",
    description="Names the taxon of every feature, as omniset microbiomes classify does. Where a feature has another "
    "name in one sample than over all, that command says so; an artifact of QIIME 2 has no place for it.",
)
