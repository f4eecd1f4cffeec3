"""What notebooks keep of their outputs: pictures and tables that every page shows well."""

import io
import re
import sys

import nbformat
import pandas
import pytest
from PIL import Image

from tests.conftest import ROOT

sys.path.append(str(ROOT / "scripts"))
from publish import clean, packed


def published_html(html: str) -> str:
    output = nbformat.v4.new_output("display_data", {"text/html": html})
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])
    clean(notebook)
    return re.sub(r"<style.*?</style>", "", output.data["text/html"], flags=re.DOTALL)


TABLE = pandas.DataFrame({"question": ["Why?", "When?"], "score": [0.5, -1.0]}, index=["a", "b"])


@pytest.mark.parametrize("shown", [TABLE, TABLE.style], ids=["table", "styler"])
def test_texts_of_pandas_tables_stay_left_without_styles(shown) -> None:
    html = published_html(shown._repr_html_())
    at_left = re.findall(r'<div align="left">(.*?)</div>', html)
    assert at_left == ["question", "a", "Why?", "b", "When?"]


def test_head_over_several_columns_stays() -> None:
    table = TABLE.set_axis([("before", "question"), ("before", "score")], axis=1)
    table.columns = pandas.MultiIndex.from_tuples(table.columns)
    html = published_html(table._repr_html_())
    assert '<div align="left">question</div>' in html
    assert '<div align="left">before</div>' not in html


@pytest.mark.parametrize("grey", [255, 232])
def test_opaque_picture_keeps_white_and_grey(grey: int) -> None:
    picture = Image.effect_noise((64, 64), 80).convert("RGB")
    picture.paste((grey, grey, grey), (0, 0, 40, 40))
    file = io.BytesIO()
    picture.save(file, "PNG")
    kept = Image.open(io.BytesIO(packed(file.getvalue(), 256))).convert("RGB")
    assert kept.getpixel((20, 20)) == (grey, grey, grey)
