"""A fitted model as an artifact: the type, its folder, and the folder that `omniset microbiomes fit` writes."""

import json

from qiime2.plugin import SemanticType, ValidationError, model

OmnisetTaxonClassifier = SemanticType("OmnisetTaxonClassifier")


class ModelConfigFormat(model.TextFileFormat):
    """config.json of an Omniset model that names taxa."""

    def _validate_(self, level):
        try:
            config = json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValidationError(f"config.json is not valid JSON: {error}") from error
        if not isinstance(config, dict) or config.get("format") != "omniset-model":
            raise ValidationError("config.json is not that of an Omniset model")
        if config.get("class") != "TaxonClassifier":
            kind = config.get("class")
            raise ValidationError(
                f"the model is a {kind}: a TaxonClassifier is needed, as omniset microbiomes fit writes"
            )


class MetricsFormat(model.TextFileFormat):
    """metrics.json: how the training went."""

    def _validate_(self, level):
        try:
            json.loads(self.path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValidationError(f"metrics.json is not valid JSON: {error}") from error


class SafetensorsFormat(model.BinaryFileFormat):
    """Weights: the length of the header, the header, and so many bytes as it says. Omniset checks every tensor."""

    def _validate_(self, level):
        size = self.path.stat().st_size
        with self.open() as file:
            length = int.from_bytes(file.read(8), "little")
            try:
                header = json.loads(file.read(min(length, size)))
                ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
            except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
                raise ValidationError("the weights are no file of safetensors") from error
        if size != 8 + length + max(ends, default=0):
            raise ValidationError(f"the weights are no whole file of safetensors: it has {size:,} bytes")


class ParquetFormat(model.BinaryFileFormat):
    """A table."""

    def _validate_(self, level):
        with self.open() as file:
            content = file.read()
        if len(content) < 12 or not content.startswith(b"PAR1") or not content.endswith(b"PAR1"):
            raise ValidationError("the table is no whole Parquet file")


class OmnisetTaxonClassifierDirectoryFormat(model.DirectoryFormat):
    """What Omniset needs to name taxa."""

    config = model.File("config.json", format=ModelConfigFormat)
    weights = model.File("model.safetensors", format=SafetensorsFormat)
    vocabulary = model.File("vocabulary.parquet", format=ParquetFormat)
    metrics = model.File("metrics.json", format=MetricsFormat)


class OmnisetModelFolderFormat(OmnisetTaxonClassifierDirectoryFormat):
    """The folder that `omniset microbiomes fit` wrote: the model, beside its report, checkpoints and the like."""

    def validate(self, level="max"):
        if not self.path.is_dir():
            raise ValidationError(f"{self.path} is not a directory.")
        files = {self.path / getattr(type(self), field).pathspec: None for field in self._fields}
        for field in self._fields:
            getattr(self, field)._validate_members({path: None for path in files if path.is_file()}, level)
