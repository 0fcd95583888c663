"""A small monograph in a folder of its own, for tests that build, break and check."""
from __future__ import annotations

import shutil
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
HEADER = """# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

"""
PARAMETERS = """# %% tags=["parameters"]
target = "tiny-hybrid"   # whose measured rows to show
rows = ""                # row file
seeds = 5                # what else Act I declares
share = 1.0
draws = 8
lr = 0.006
measure = False
quick = False

"""
SMALL = HEADER + '''# %% [markdown]
# # A small page

# %% tags=["parameters"]
target = "tiny-hybrid"   # whose measured rows to show

# %%
import pandas as pd
from specdecode_nb.book import draw, published, start

page = start("overview", globals())
facts = published.load("act4n")

# %%
page.number("half", 0.5, ".2f", "x", "here")
page.say("A number: [[half]].")
page.show(pd.DataFrame({"a_b": [1.5, 2.0], "c": ["x|y", "50 %"]}), "small", "A table with [[half]]", sources=[facts])
page.check("half is less than one", 0.5 < 1)

# %%
page.figure(draw.survival({"uno_k4": [0.6, 0.3, 0.1], "uno_k8": [0.6, 0.3, 0.1, 0.05]}), "curve", "Survival", "Two falling curves that lie on each other, from 0.6 to 0.1.", sources=[facts])

# %%
page.provenance()
page.finish()
'''


def tree(folder: Path, source: str = SMALL) -> Path:
    """A repository with the published facts and one notebook source, the overview."""
    shutil.copytree(REPOSITORY / "data" / "published", folder / "data" / "published")
    (folder / "notebooks" / "source").mkdir(parents=True)
    (folder / "notebooks" / "source" / "overview.py").write_text(source)
    (folder / "pyproject.toml").write_text("")
    return folder
