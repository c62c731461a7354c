"""Make src/vario/reports/fonts/vario-plot-cjk.otf: only the glyphs of the report's Chinese text.

python tools/make_font.py NotoSansCJK-Regular.ttc

The source is Noto Sans CJK, for example from Debian's package fonts-noto-cjk; face 2 of the collection has the forms of
simplified Chinese. It is under the SIL Open Font License, whose text lies beside the result.
"""

from __future__ import annotations

import sys

from fontTools import subset
from fontTools.ttLib import TTFont

from vario.reports.plot_fonts import BUNDLED, BUNDLED_FAMILY
from vario.reports.progress_words import CHINESE, CHINESE_NOTES, say_duration

SIMPLIFIED = 2
STAMP = 3_786_912_000  # a fixed date (2024-01-01 in a font's clock), so that the same words make the same file


def characters() -> str:
    """Return every non-ASCII character of the report's Chinese text."""
    durations = [say_duration("zh", seconds) for seconds in (0.1, 5, 100, 5000, 1e6)]
    return "".join(
        sorted({c for text in (*CHINESE.values(), *CHINESE_NOTES.values(), *durations) for c in text if ord(c) > 127})
    )


def main() -> None:
    """Subset the font named on the command line."""
    font = TTFont(sys.argv[1], fontNumber=SIMPLIFIED, recalcTimestamp=False)
    options = subset.Options(
        layout_features=[], name_IDs=[0, 1, 2, 3, 4, 5, 6, 13, 14], hinting=False, notdef_outline=True
    )
    cutter = subset.Subsetter(options)
    cutter.populate(text=characters())
    cutter.subset(font)
    for name_id, text in {
        1: BUNDLED_FAMILY,
        3: BUNDLED_FAMILY,
        4: BUNDLED_FAMILY,
        6: BUNDLED_FAMILY.replace(" ", ""),
    }.items():
        font["name"].setName(text, name_id, 3, 1, 0x409)
    font["CFF "].cff.fontNames[0] = BUNDLED_FAMILY.replace(" ", "")
    top = font["CFF "].cff.topDictIndex[0]
    top.FullName = top.FamilyName = BUNDLED_FAMILY
    font["head"].modified = STAMP
    BUNDLED.parent.mkdir(parents=True, exist_ok=True)
    font.save(BUNDLED)


if __name__ == "__main__":
    main()
