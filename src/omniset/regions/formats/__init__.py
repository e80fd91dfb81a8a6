"""Files of brain regions: expression of genes, connectivity, coordinates; each read into one shape, by names.

Names are what joins the files, so they are looked for wherever a file may have them. Numbers that only count rows from
0, as pandas writes them beside a table without names, are no names.

Known imperfections: a line break within quotes is not read; v7.3 files of MATLAB give no sparse matrices.
"""

from omniset.regions.formats.connectivity import Connectivity, check_target, read_connectivity, unknown_regions
from omniset.regions.formats.coordinates import hemisphere_of_name, network_of_name, read_coordinates
from omniset.regions.formats.expression import Expression, read_expression
from omniset.regions.formats.structures import structure_of_name, structure_of_text

__all__ = [
    "Connectivity",
    "Expression",
    "check_target",
    "hemisphere_of_name",
    "network_of_name",
    "read_connectivity",
    "read_coordinates",
    "read_expression",
    "structure_of_name",
    "structure_of_text",
    "unknown_regions",
]
