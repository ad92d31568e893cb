"""Indices, sweeps and the elements that are made of them; bad ones are refused with one clear sentence."""

import json
from typing import Any

import pytest
from msgspec import structs

from weft.domain.arrays import IndicesError, indices_of, indices_text, split_elements
from weft.domain.decoding.elements import ArrayTooLargeError, elements_of
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.spec import JobSpec


def spec(text: str) -> JobSpec:
    return decode_spec(f"name: train\ncommand: [run, '--lr={{lr}}', '{{other}}']\n{text}".encode(), content="yaml")


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [("3", (3,), None), ("0-3%2", (0, 1, 2, 3), 2), ("7,1-5:2", (1, 3, 5, 7), None), ("%4", (), 4)],
)
def test_indices_are_numbers_ranges_and_steps(text: str, indices: tuple[int, ...], at_once: int | None) -> None:
    assert indices_of(text) == (indices, at_once)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0-999999999", "expected indices such as"),
        ("0-999999", "at most 10000 elements"),
        ("0-9999,10000", "at most 10000 elements"),
        ("1000000", "more than 999999"),
        ("-1", "expected indices such as"),
        ("5-1", "goes down"),
        ("1-9:0", "the step must be 1 or more"),
        ("0-3,2-4", "index 2 is named twice"),
        ("0-3%0", "a number of 1 or more after %, not '0'"),
        ("0-3%", "a number of 1 or more after %, not ''"),
        ("1,,2", "expected indices such as"),
    ],
)
def test_indices_that_name_no_array_are_refused(text: str, why: str) -> None:
    with pytest.raises(IndicesError, match=why):
        indices_of(text)


def test_elements_are_named_by_their_index_and_by_several() -> None:
    assert split_elements("train_3") == ("train", (3,))
    assert split_elements("a-1_[1-3,7]") == ("a-1", (1, 2, 3, 7))
    assert split_elements("train") == ("train", None)
    assert indices_text((0, 1, 2, 7)) == "0-2,7"
    with pytest.raises(IndicesError):
        split_elements("a-1_[9-1]")


def test_an_element_has_its_index_and_the_variables_of_its_array() -> None:
    made = elements_of(spec("array: 5-7%2\n"), "a-x")
    assert [job_id for job_id, _ in made] == ["j-x-5", "j-x-6", "j-x-7"]
    _, last = made[-1]
    assert last.name == "train-7"
    wanted = {"ID": "a-x", "INDEX": "7", "COUNT": "3", "MIN": "5", "MAX": "7"}
    assert last.env == {f"WEFT_ARRAY_{name}": value for name, value in wanted.items()}
    assert last.element is not None
    assert (last.element.index, last.element.at_once, last.array) == (7, 2, None)
    assert last.command == ("run", "--lr={lr}", "{other}")


def test_a_sweep_has_a_row_for_every_combination() -> None:
    made = elements_of(spec("sweep: {lr: [0.1, 1.0e-4], deep: [true, false], seed: 1..3}\narray: '%4'\n"), "a-x")
    assert len(made) == 12
    _, second = made[1]
    assert second.command == ("run", "--lr=0.1", "{other}")
    assert second.env["WEFT_SWEEP_SEED"] == "2"
    assert second.env["WEFT_SWEEP_DEEP"] == "true"
    assert len({tuple(sorted(one.env.items())) for _, one in made}) == 12


def test_a_sample_is_drawn_from_its_seed_alone() -> None:
    text = "sweep: {lr: {min: 1.0e-5, max: 1.0e-1, log: true}, seed: 1..3}\nsample: {count: 50, seed: %d}\n"
    first, again, other = (elements_of(spec(text % seed), "a-x") for seed in (7, 7, 8))
    assert first == again != other
    drawn = [float(one.env["WEFT_SWEEP_LR"]) for _, one in first]
    assert all(1e-5 <= value <= 1e-1 for value in drawn)
    assert sum(value < 1e-3 for value in drawn) > 10  # as likely in each power of ten


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("element: {array: a-1, name: x, index: 0}", "element"),
        ("array: '%3'", "array"),
        ("array: 0-3\nsweep: {lr: [1]}", "array"),
        ("sample: {count: 3}", "sample"),
        ("sweep: {lr: [1], LR: [2]}", "sweep.LR"),
        ("sweep: {lr: 1..99999}", "sweep.lr"),
        ("sweep: {lr: 9..1}", "sweep.lr"),
        ("sweep: {lr: 0..999999999999}", "sweep.lr"),
        ("sweep: {lr: 1..200, seed: 1..200}", "sweep"),
        ("sweep: {lr: {min: 1, max: 2}}", "sweep.lr"),
        ("sweep: {lr: {min: 0, max: 2, log: true}}\nsample: {count: 3}", "sweep.lr"),
        ("sweep: {lr: {min: -1.0e+308, max: 1.0e+308}}\nsample: {count: 3}", "sweep.lr"),
        ("sweep: {lr: [.nan]}", "sweep.lr"),
        ("sweep: {lr: []}", "sweep.lr"),
        ("sweep: {}", "sweep"),
        ("sweep: {1x: [1]}", "sweep"),
        ("after: [{job: x, element_wise: true}]", "after[0].element_wise"),
        ("after: [{job: ../x}]", "after[0].job"),
        ("after: [{job: x, when: never}]", "after[0].when"),
        ("array: 0-3\nkind: inference\nservice: {}", "service"),
    ],
)
def test_a_bad_array_names_its_field(text: str, field: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(text)
    assert refused.value.field.startswith(field), refused.value


def test_an_array_whose_elements_no_job_could_be_is_refused() -> None:
    long = decode_spec(b'{"name": "%s", "command": ["true"], "array": "0-9"}' % (b"x" * 62))
    with pytest.raises(SpecError, match="name"):
        elements_of(long, "a-x")
    names = {f"NAME_{number}": "" for number in range(1020)}
    env = decode_spec(b'{"name": "x", "command": ["true"], "array": "0-9"}')
    with pytest.raises(SpecError, match="env"):
        elements_of(structs.replace(env, env=names), "a-x")


@pytest.mark.parametrize(
    "fields",
    [
        {"array": "0-9999", "env": {f"A{number}": "" for number in range(1000)}},
        {"array": "0-9999", "after": [{"job": f"x-{number}", "element_wise": True} for number in range(100)]},
        {"sweep": {"x": "0..999"}, "command": ["{x}" + "a" * 100_000]},
        {"sweep": {"x": ["a", "b" * 1000, "c"]}, "command": ["{x}" * 130] * 500},
        {"sweep": {"x": ["a", "b" * 1000, "c"]}, "roles": {"w": {"command": ["{x}" * 130] * 500}}},
        {"sweep": {"x": ["a", "\x01" * 1000, "c"]}, "command": ["{x}" * 100] * 100},
        {"sweep": {f"x{number}": ["b" * 1000] for number in range(31)} | {"y": "1..2000"}, "sample": {"count": 2000}},
    ],
)
def test_a_short_specification_of_huge_elements_is_refused_before_they_are_made(fields: dict[str, Any]) -> None:
    wanted = decode_spec(json.dumps({"name": "x", "command": ["true"], **fields}).encode())
    with pytest.raises(ArrayTooLargeError, match="more than 33554432 bytes together"):
        elements_of(wanted, "a-x")


@pytest.mark.parametrize("values", [[10**400, -(10**30)], [1e308, 5e-324, -0.0], [True, 1, 1.0, "1"], ["{x}", "{y}"]])
def test_odd_values_are_arguments_as_they_were_written_and_are_not_filled_again(values: list[Any]) -> None:
    wanted = decode_spec(json.dumps({"name": "x", "command": ["{x}"], "sweep": {"x": values}}).encode())
    made = [one.command for _, one in elements_of(wanted, "a-x")]
    assert made == [(str(value).lower() if isinstance(value, bool) else str(value),) for value in values]
