"""A run without a server: in a notebook, and as one HTML file."""

import base64
import dataclasses
import json
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from web_client import SCRIPT_NAME

import little_trainings
import made_runs
import vario
from vario.cli import main
from vario.runs.views.heat import read_heat
from vario.runs.views.heat_png import BAD, NO_SIZE, NUM_COLOURS, heat_png
from vario.web.pages import report


def picture(png):
    """Width, height, palette and pixels of an indexed PNG, every checksum checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    width, height, depth, colour_type = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, colour_type) == (8, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (lines[:, 0] == 0).all()
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    return palette, lines[:, 1:]


class Tags(HTMLParser):
    """The tags of a page, and whether they are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_heat_map_becomes_a_picture_with_its_own_colour_for_what_is_bad(folder):
    heat = read_heat(vario.open_run(folder / "deeper" / "broken"), "gradient")
    palette, pixels = picture(heat_png(heat))
    assert pixels.shape == heat.values.shape
    assert (pixels[:, 45:] == NUM_COLOURS).all()
    assert tuple(palette[NUM_COLOURS]) == BAD
    row, column = np.unravel_index(np.nanargmax(heat.values), heat.values.shape)
    assert pixels[row, column] == NUM_COLOURS - 1
    brightness = palette[:NUM_COLOURS].astype(int) @ [3, 6, 1]
    assert (np.diff(brightness) >= 0).all()


def test_token_ids_and_masks_are_grey_and_do_not_stretch_the_scale(folder):
    heat = read_heat(vario.open_run(folder / "deeper" / "broken"), "gradient", last=40)
    sized = dataclasses.replace(heat, values=heat.values.copy(), kinds=("mask", *[""] * (len(heat.targets) - 1)))
    sized.values[0] = 3.4e38
    palette, pixels = picture(heat_png(sized))
    assert (palette[pixels[0]] == NO_SIZE).all()
    assert pixels[1:].max() == NUM_COLOURS - 1


def test_a_notebook_shows_how_a_run_fares_without_a_script(folder):
    text = vario.open_run(folder / "deeper" / "broken")._repr_html_()
    tags = [tag for tag, _ in Tags(text).found]
    assert "script" not in tags
    assert "finished, step 59" in text
    assert "loss <strong>nan</strong>" in text
    assert "At step 45" in text
    source = re.search(r'src="data:image/png;base64,([^"]+)"', text)[1]
    assert picture(base64.b64decode(source))[1].shape[1] == 60


def test_names_from_a_run_are_text_in_a_notebook(folder, tmp_path):
    text = vario.open_run(folder / SCRIPT_NAME)._repr_html_()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    frame = made_runs.frame(0, targets=('"><img src=x onerror=alert(1)>',))
    made_runs.write_run(tmp_path / "run", [made_runs.record(0, frame, **{"eval<b>": 1.0})])
    shown = vario.open_run(tmp_path / "run")._repr_html_()
    assert {tag for tag, _ in Tags(shown).found} <= {"div", "strong", "img"}


def test_a_notebook_shows_a_run_that_has_recorded_nothing(tmp_path):
    made_runs.write_run(tmp_path / "run", [])
    assert "No tensors recorded yet." in vario.open_run(tmp_path / "run")._repr_html_()


@pytest.fixture
def built(tmp_path, monkeypatch):
    """What the front end's build leaves for reports; small ones, so that this test needs no Node."""
    place = tmp_path / "built"
    place.mkdir()
    (place / "report.js").write_text("document.title = '</script>'")
    (place / "report.css").write_text("body { margin: 0 }")
    monkeypatch.setattr(report, "BUILT", place)
    return place


def content_of(page):
    text = re.search(r"<script>window\.VARIO = (.*?)</script>", page, flags=re.DOTALL)[1]
    assert "<" not in text
    return json.loads(text)


def test_a_run_becomes_one_file_with_all_its_numbers(folder, built, tmp_path, capsys):
    place = tmp_path / "report.html"
    assert main(["export", str(folder / "deeper" / "broken"), "--html", str(place)]) == 0
    assert str(place) in capsys.readouterr().out
    page = place.read_text(encoding="utf8")
    Tags(page)
    assert not re.search(r'(src|href)="(?!data:)', page), "it loads nothing"
    content = content_of(page)
    assert content["run"]["name"] == content["run"]["path"] == "broken"
    assert content["alerts"]["incidents"][0]["step"] == 45
    heads = []
    for heat in content["heats"]:
        body = base64.b64decode(heat)
        (length,) = struct.unpack_from("<I", body)
        heads.append(json.loads(body[4 : 4 + length]))
    assert [head["quantity"] for head in heads] == ["gradient", "activation", "weight"]
    curves = {(curve["quantity"], curve["target"]) for curve in content["curves"]}
    assert ("scalar", "loss") in curves
    assert any(quantity == "activation" for quantity, _ in curves), "the curve of the incident"


def test_a_report_of_a_run_named_as_a_script_holds_no_other_script(folder, built, tmp_path):
    place = tmp_path / "report.html"
    assert main(["export", str(folder / SCRIPT_NAME), "--html", str(place)]) == 0
    page = place.read_text(encoding="utf8")
    assert [tag for tag, _ in Tags(page).found].count("script") == 2
    assert content_of(page)["run"]["name"] == SCRIPT_NAME


def test_a_report_is_not_overwritten_unless_forced(folder, built, tmp_path, capsys):
    place = tmp_path / "report.html"
    place.write_text("mine")
    assert main(["export", str(folder / "healthy"), "--html", str(place)]) == 2
    assert "Add --force" in capsys.readouterr().err
    assert place.read_text() == "mine"
    assert main(["export", str(folder / "healthy"), "--html", str(place), "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_bytes"] == place.stat().st_size


@pytest.mark.parametrize("words", [[], ["--html", "x.html", "--format", "csv"], ["--html", "x.html", "--output", "y"]])
def test_export_wants_either_tables_or_a_page(folder, built, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(folder / "healthy"), *words]) == 2
    assert "--html" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_a_clone_without_built_pages_says_how_to_build_them(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "BUILT", tmp_path / "nothing")
    assert main(["export", str(folder / "healthy"), "--html", str(tmp_path / "x.html")]) == 2
    assert "make page" in capsys.readouterr().err


def test_a_clone_without_built_pages_shows_how_to_build_them(serve, folder, tmp_path, monkeypatch):
    from vario.web.pages import assets

    monkeypatch.setattr(assets, "BUILT", tmp_path / "nothing")
    with serve(folder) as client:
        page = client.ask("/", run="healthy")
    assert page.status == 200
    assert b"make page" in page.body


def test_the_pages_own_files_are_served_with_their_types_and_kept(serve, folder, tmp_path, monkeypatch):
    from vario.web.pages import assets

    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title>")
    (tmp_path / "assets" / "index-abc.js").write_text("1")
    monkeypatch.setattr(assets, "BUILT", tmp_path)
    with serve(folder) as client:
        page, script = client.ask("/"), client.ask("/assets/index-abc.js")
        assert client.ask("/assets/index-abd.js").status == 404
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-store"
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]


def test_training_little_is_enough_for_a_page(serve, tmp_path):
    little_trainings.train(tmp_path / "one", steps=1)
    with serve(tmp_path) as client:
        for path in (
            "/api/run",
            "/api/heat",
            "/api/changes",
            "/api/model",
            "/api/ranks",
            "/api/alerts",
            "/api/settings",
        ):
            assert client.ask(path, run="one").status == 200, path
