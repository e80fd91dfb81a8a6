"""What the tests of every reader of regions share: names, files that they write, and what is refused."""

import re

import pytest

# pandas 3 with anndata 0.12, which cannot write its new type of text.
TEXT_AS_OBJECTS = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated"),
    pytest.mark.usefixtures("text_as_objects"),
]
REGIONS = 13
NAMES = [f"{side}_area{'abcdefg'[i % 7]}" for i, side in enumerate(["L"] * 7 + ["R"] * 6)]
IDS = [str(i + 1) for i in range(REGIONS)]
GOOD = "label,TP53,A1BG\nL_a,0.1,0.2\nL_b,0.3,0.4\n"


def refused(read, source, message, name=None):
    """It names the source first and then says what is wrong."""
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(source)
    assert str(error.value).startswith(str(name or source))


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def csv(frame, path, **options):
    frame.to_csv(path, **options)
    return path


def parquet(frame, path, **options):
    frame.to_parquet(path, **options)
    return path
