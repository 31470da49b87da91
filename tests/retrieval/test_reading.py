"""Each kind of file: its structure, its lines, and what makes it unreadable."""

import io
from pathlib import Path

import pytest
from bs4 import Tag

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.files import read_blocks
from intaglio.retrieval.reading.unreadable import Unreadable


def read(name: str, content: str | bytes) -> list[Block]:
    return read_blocks(Path(name), content.encode() if isinstance(content, str) else content)


def places(blocks: list[Block]) -> list[tuple[str, int, int, str]]:
    return [(block.text, block.line, block.last_line, block.title) for block in blocks]


def test_text_by_paragraphs() -> None:
    assert places(read("a.txt", "one\ntwo\r\n\n\nthree")) == [("one\ntwo", 1, 2, ""), ("three", 5, 5, "")]


def test_markdown_by_headings_and_code_is_none() -> None:
    text = "# Top\nintro\n\n```\n# no heading\n\nx\n```\n\nUnder\n-----\nlow\n## Other\n# New\nend"
    assert places(read("a.md", text)) == [
        ("Top", 1, 1, "Top"),
        ("intro", 2, 2, "Top"),
        ("```\n# no heading\n\nx\n```", 4, 8, "Top"),
        ("Under", 10, 11, "Top > Under"),
        ("low", 12, 12, "Top > Under"),
        ("Other", 13, 13, "Top > Other"),
        ("New", 14, 14, "New"),
        ("end", 15, 15, "New"),
    ]


@pytest.mark.parametrize(
    ("name", "code", "titles"),
    [
        (
            "a.py",
            "import x\n# why\n@wrap\nclass A(B):\n    def f(self):\n        return 1\n\n\ny = 2",
            ["", "A", "A > f", ""],
        ),
        (
            "a.rs",
            "use x;\nimpl A {\n    fn f(&self) -> u8 {\n        1\n    }\n}\nconst Y: u8 = 2;",
            ["", "A", "A > f", ""],
        ),
        ("a.c", "#define X 1\n\nint main(void)\n{\n    return 0;\n}\nint y;", ["", "main", ""]),
        ("a.go", "package a\nfunc (r T) Name(x int) int {\n\treturn x\n}", ["", "Name"]),
    ],
)
def test_source_by_definitions(name: str, code: str, titles: list[str]) -> None:
    blocks = read(name, code)
    assert list(dict.fromkeys(block.title for block in blocks)) == list(dict.fromkeys(titles))
    assert [block.line for block in blocks] == list(range(1, len(code.split("\n")) + 1))
    if name == "a.py":
        assert next(block.line for block in blocks if block.title == "A") == 2  # with its comment and decorator


def test_html_by_headings_and_definitions() -> None:
    page = """<html><head><title>no</title></head><body><nav>menu</nav><main>
<h1>Top<a class="headerlink">x</a></h1>
<p>Some <b>bold</b>
text.<!-- no --></p><script>no()</script>
<dl><dt>f(x)</dt><dd><p>Does f.</p></dd></dl>
<table><tr><td>a</td><td>b</td></tr></table><pre>
 code
</pre></main><footer>no</footer></body></html>"""
    assert places(read("a.html", page)) == [
        ("Top", 2, 2, "Top"),
        ("Some bold text.", 3, 4, "Top"),
        ("f(x)", 5, 5, "Top > f(x)"),
        ("Does f.", 5, 5, "Top > f(x)"),
        ("a | b", 6, 6, "Top"),
        (" code", 6, 6, "Top"),
    ]


def test_a_heading_costs_no_look_at_the_whole_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """An element's hash is its text, written out: once a heading, and a long page takes minutes."""

    def written_out(self: Tag) -> int:
        raise AssertionError("an element was written out")

    monkeypatch.setattr(Tag, "__hash__", written_out)
    page = "<h1>Top<a class='headerlink'><b>x</b></a> of <i>all</i></h1>text"
    assert places(read("a.html", page))[1] == ("text", 1, 1, "Top of all")


def test_a_page_in_the_encoding_it_declares() -> None:
    assert read("a.html", '<meta charset="latin-1"><p>é</p>'.encode("latin-1"))[0].text == "é"


def test_tables_by_rows() -> None:
    assert places(read("a.csv", 'name,size\nfox,"3\n4"\n\ncat,5')) == [
        ("name: fox; size: 3\n4", 2, 3, ""),
        ("name: cat; size: 5", 5, 5, ""),
    ]
    assert places(read("a.jsonl", '{"a": "x", "b": [1]}\n\n"y"')) == [("a: x\nb: [1]", 1, 1, ""), ("y", 3, 3, "")]


def test_docx_by_headings() -> None:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Top", 1)
    document.add_paragraph("text")
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b"
    file = io.BytesIO()
    document.save(file)
    assert places(read("a.docx", file.getvalue())) == [
        ("Top", 1, 1, "Top"),
        ("text", 2, 2, "Top"),
        ("a | b", 3, 3, "Top"),
    ]


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page, written out by hand."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<</Type/Catalog/Pages 2 0 R>>",
        f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for i, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            "<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 3 0 R>>>>/MediaBox[0 0 612 792]"
            f"/Contents {5 + 2 * i} 0 R>>"
        )
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    written, places_of = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places_of.append(len(written))
        written += f"{number} 0 obj{body}endobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places_of)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer<</Size {size}/Root 1 0 R>>\n"
    end += f"startxref\n{len(written)}\n%%EOF"
    return written + end.encode()


def test_pdf_by_pages() -> None:
    pytest.importorskip("pypdf")
    blocks = read("a.pdf", pdf("hello there", "second page"))
    assert [(block.text.strip(), block.line, block.page) for block in blocks] == [
        ("hello there", 1, 1),
        ("second page", 1, 2),
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.pdf", b"%PDF-1.4 and no more", "a broken PDF file"),
        ("a.pdf", pdf(""), "without text"),
        ("a.docx", b"PK no zip", "a broken docx file"),
        ("a.txt", b"\x7fELF\0\0", "a binary file"),
        ("a.md", b"caf\xe9 au lait", "not utf-8 text from byte 3 on"),
        ("a.html", b'<meta charset="klingon">', "unknown encoding"),
        ("a.html", b"<b>" * 200_000, "nested too deeply"),
        ("a.jsonl", b'{"a": 1}\n{"b"', "line 2 is not JSON"),
        ("a.json", b"[" * 200_000, "not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_says_why(name: str, content: bytes, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        read(name, content)
