"""Data in object stores, as a job names it: what is taken, and what is refused with the name of its field."""

from typing import Any

import msgspec
import pytest

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.object_store.urls import bucket_and_prefix
from weft.domain.spec import JobSpec
from weftd.executor.data.rclone import NoDataError, store_of

KEYS = "AWS_ACCESS_KEY_ID=id AWS_SECRET_ACCESS_KEY=hush"


def read(**fields: Any) -> JobSpec:
    asked = {"name": "train", "command": ["true"], "object_store": "minio", **fields}
    return decode_spec(msgspec.json.encode({name: value for name, value in asked.items() if value is not None}))


def test_a_job_names_objects_for_paths_and_the_secret_of_their_store() -> None:
    spec = read(mounts={"/data": "s3://sets/imagenet", "/weights/": "s3://models"})
    assert spec.mounts["/data"] == "s3://sets/imagenet"
    assert spec.all_secrets == {"WEFT_OBJECT_STORE": "minio"}
    assert bucket_and_prefix("s3://sets/a/b/") == ("sets", "a/b")
    assert bucket_and_prefix("s3://models") == ("models", "")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"mounts": {"/data": "s3://sets/../other"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://sets/a//b"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://sets//etc"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://a..b/x"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://"}}, "mounts./data"),
        ({"mounts": {"/data": "s3:///x"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://UPPER/x"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://sets/a\nb"}}, "mounts./data"),
        ({"mounts": {"/data": "s3://" + "b" * 64}}, "mounts./data"),
        ({"mounts": {"/data": "s3://sets/" + "x" * 1001}}, "mounts./data"),
        ({"mounts": {"/data": "file:///etc"}}, "mounts./data"),
        ({"mounts": {"/host": "/"}}, "mounts./host"),
        ({"mounts": [{"source": "/", "target": "/host"}]}, "mounts"),
        ({"mounts": {"data": "s3://sets/x"}}, "mounts"),
        ({"mounts": {"/a/../b": "s3://sets/x"}}, "mounts./a/../b"),
        ({"mounts": {"/": "s3://sets/x"}}, "mounts./"),
        ({"mounts": {"/proc/1": "s3://sets/x"}}, "mounts./proc/1"),
        ({"mounts": {"/a": "s3://sets/x", "/a/b": "s3://sets/y"}}, "mounts./a/b"),
        ({"mounts": {"/a-b": "s3://sets/x", "/a_b": "s3://sets/y"}}, "mounts./a_b"),
        ({"mounts": {"/data": "s3://sets/x"}, "object_store": None}, "object_store"),
        ({}, "object_store"),
        ({"outputs": {"/out": "s3://sets/../x"}}, "outputs./out"),
        ({"outputs": {"/out": "s3://sets/x"}, "object_store": None}, "object_store"),
        ({"outputs": {"/weft/out": "s3://sets/x"}}, "outputs./weft/out"),
        ({"outputs": {"/data/out": "s3://sets/x"}, "mounts": {"/data": "s3://sets/y"}}, "outputs./data/out"),
        ({"mounts": {f"/m{number}": "s3://sets/x" for number in range(17)}}, "mounts"),
        ({"image": "i", "mounts": {"/v": "s3://sets/x"}, "volumes": [{"name": "v", "target": "/v"}]}, "mounts./v"),
    ],
)
def test_what_names_no_objects_or_no_place_is_refused_with_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        read(**fields)
    assert refused.value.field.startswith(field), refused.value


def test_the_secret_of_a_store_has_the_names_that_its_clients_use() -> None:
    store = store_of(f"{KEYS}\nAWS_ENDPOINT_URL=https://minio.example.org:9000 AWS_REGION=eu", "minio")
    assert store.variables["RCLONE_CONFIG_WEFT_SECRET_ACCESS_KEY"] == "hush"
    assert "hush" not in repr(store)
    assert store.without_keys("no hush for id") == "no *** for ***"
    assert store_of(KEYS, "aws").variables["RCLONE_CONFIG_WEFT_PROVIDER"] == "AWS"


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("", "has no AWS_ACCESS_KEY_ID"),
        ("AWS_ACCESS_KEY_ID=id", "has no AWS_SECRET_ACCESS_KEY"),
        ("hush", "no NAME=VALUE"),
        (f"{KEYS} RCLONE_CONFIG=hush", "no NAME=VALUE"),
        (f"{KEYS} AWS_ACCESS_KEY_ID=hush", "twice"),
        (f"{KEYS} AWS_ENDPOINT_URL=file:///hush", "AWS_ENDPOINT_URL"),
        (f"{KEYS} AWS_ENDPOINT_URL=http://user:hush@host", "AWS_ENDPOINT_URL"),
    ],
)
def test_a_secret_of_another_form_is_refused_without_a_word_of_it(secret: str, why: str) -> None:
    with pytest.raises(NoDataError, match=why) as refused:
        store_of(secret, "minio")
    assert "hush" not in str(refused.value)
    assert str(refused.value).startswith("object-store: the secret minio ")
