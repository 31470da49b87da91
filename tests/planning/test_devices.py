"""The table of devices, files of one's own, this machine, and what runtimes take."""

from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.planning.devices import HERE, devices, find_device, overhead

GIB = 1 << 30


def test_the_table_holds_what_people_have() -> None:
    table = devices()
    assert {"h100", "h200", "b200", "a100", "a100-40", "l40s", "rtx4090", "rtx3090", "v100", "mi300x"} <= table.keys()
    for one in table.values():
        assert 10 * GIB < one.memory < 200 * GIB, one.name
        assert one.peak("bfloat16") > one.peak("float32") > 5e12, one.name
        assert one.bandwidth > one.network, one.name
        assert one.link >= one.network, one.name


def test_names_are_forgiving_but_not_guessed() -> None:
    assert find_device("H100") == devices()["h100"]
    with pytest.raises(UserError, match=r"did you mean h100"):
        find_device("h1000")
    with pytest.raises(UserError, match="has no products in 'float8'"):
        find_device("a100").peak("float8")


def test_a_file_adds_and_changes(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "h100: {price: 1.5}\ntoy: {memory: 1, bandwidth: 10, bf16: 1, fp32: 0.5, link: 1, network: 0.1, per_host: 2}\n",
        encoding="utf-8",
    )
    changed, toy = find_device("h100", file), find_device("toy", file)
    assert (changed.price, changed.memory) == (1.5, devices()["h100"].memory)
    assert (toy.memory, toy.bandwidth, toy.peak("bfloat16"), toy.per_host) == (GIB, 1e10, 1e12, 2)
    assert find_device("toy", file, price=4.0).price == 4.0


@pytest.mark.parametrize(("text", "said"), [
    ("toy: {memory: 1}", "toy: bandwidth"),
    ("toy: {memory: -1, bandwidth: 1, bf16: 1, fp32: 1, link: 1, network: 1}", "memory"),
    ("h100: {memry: 1}", "did you mean memory"),
    ("- h100", "not a table"),
])  # fmt: skip
def test_a_file_that_says_nonsense(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=said):
        find_device("toy" if "toy" in text else "h100", file)


def test_a_price_is_not_negative() -> None:
    with pytest.raises(UserError, match="price"):
        find_device("h100", price=-1.0)


def test_this_machine_has_its_memory() -> None:
    here = find_device(HERE)
    assert here.cpu
    assert here.memory > GIB // 4


def test_a_runtime_takes_a_range() -> None:
    h100 = devices()["h100"]
    alone, many = overhead(h100, 40 * GIB, 1), overhead(h100, 40 * GIB, 8)
    assert 0 < alone.least < alone.most
    assert "NCCL" in many.parts
    assert "NCCL" not in alone.parts
    assert many.plain()["most"] == many.most
    assert "context and kernels" not in overhead(find_device(HERE), GIB, 1).parts
