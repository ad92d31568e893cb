"""Names of images, and the paths of the registry's API that are passed on."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.messages.images import registry_image
from weftd.gateway.errors import RejectedError
from weftd.gateway.registry.requests import What, request_of
from weftd.gateway.registry.tickets import TICKET_SECONDS, TICKET_USER, Tickets, basic

DIGEST = f"sha256:{'0' * 64}"
UPLOAD = "3b9c2f1e-0a1b-4c2d-8e3f-001122334455"


@pytest.mark.parametrize(
    ("name", "repository", "tag", "digest"),
    [
        ("weft.internal/alice/train", "alice/train", "latest", ""),
        ("weft.internal/alice/team/train:7", "alice/team/train", "7", ""),
        (f"weft.internal/alice/train@{DIGEST}", "alice/train", "", DIGEST),
        (f"gateway:8470/a--b/train:7@{DIGEST}", "a--b/train", "7", DIGEST),
    ],
)
def test_an_image_of_the_registry_is_read(name: str, repository: str, tag: str, digest: str) -> None:
    found = registry_image(name, address="gateway:8470")
    assert found is not None
    assert (found.repository, found.tag, found.digest) == (repository, tag, digest)
    assert registry_image(str(found)) == found


@pytest.mark.parametrize("name", ["busybox", "busybox:1", "alice/train:7", "gateway:8471/alice/train", "weft.internal"])
def test_other_images_are_none_of_it(name: str) -> None:
    assert registry_image(name.replace("weft.internal", "weft.internal.org"), address="gateway:8470") is None


@pytest.mark.parametrize(
    "rest",
    ["train:7", "", "alice/", "Alice/train", "alice//train", "alice/../bob/x", "alice/train:", "alice/x@sha256:0",
     f"alice/{'x' * 200}", "alice/train:7:8", "alice/train/:7", "_/x"],
)  # fmt: skip
def test_a_name_that_the_registry_could_not_have_is_refused(rest: str) -> None:
    with pytest.raises(ValueError, match=r"expected weft.internal/TENANT/NAME"):
        registry_image(f"weft.internal/{rest}")


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/v2/", What.PING),
        ("GET", "/v2/alice/train/tags/list", What.TAGS),
        ("PUT", "/v2/alice/train/manifests/7", What.MANIFEST),
        ("HEAD", f"/v2/alice/train/manifests/{DIGEST}", What.MANIFEST),
        ("GET", f"/v2/alice/train/blobs/{DIGEST}", What.BLOB),
        ("POST", "/v2/alice/train/blobs/uploads/", What.UPLOADS),
        ("PATCH", f"/v2/alice/train/blobs/uploads/{UPLOAD}", What.UPLOAD),
    ],
)
def test_what_is_asked_is_passed_on_as_it_is(method: str, path: str, what: What) -> None:
    asked = request_of(method, path, [])
    assert (asked.what, asked.path) == (what, path)
    with pytest.raises(RejectedError):
        request_of("DELETE" if what is not What.MANIFEST else "POST", path + "x", [])


PARTS = (
    "a",
    "Z",
    ".",
    "..",
    "/",
    "manifests/",
    "blobs/",
    "uploads/",
    "tags/list",
    "%2e",
    "%2f",
    "_",
    "7",
    DIGEST,
    UPLOAD,
    "\n",
)


@given(
    path=st.lists(st.sampled_from(PARTS), max_size=8).map("".join),
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
)
def test_no_path_leaves_its_repository(path: str, method: str) -> None:
    try:
        asked = request_of(method, f"/v2/alice/{path}", [])
    except RejectedError:
        return
    assert asked.path == f"/v2/alice/{path}"
    assert asked.repository.startswith("alice/")
    assert not {"", ".", ".."} & set(asked.path.strip("/").split("/"))
    assert "%" not in asked.path


@pytest.mark.parametrize(
    "query",
    [
        [("mount", DIGEST), ("mount", DIGEST)],
        [("mount", "x")],
        [("digest", DIGEST)],
        [("from", "../bob")],
        [("a", "b")],
    ],
)
def test_a_parameter_that_is_none_or_twice_is_refused(query: list[tuple[str, str]]) -> None:
    with pytest.raises(RejectedError):
        request_of("POST", "/v2/alice/train/blobs/uploads/", query)


def test_a_ticket_is_of_one_repository_one_cluster_and_an_hour() -> None:
    now = [1000.0]
    tickets = Tickets("secret", now=lambda: now[0])

    def header(password: str, user: str = TICKET_USER) -> str:
        return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    made = tickets.made("alice", "alice/train")
    found = tickets.of(header(made))
    assert found is not None
    assert (found.tenant, found.repository) == ("alice", "alice/train")
    assert Tickets("secret", now=lambda: now[0]).of(header(made)) == found
    assert Tickets("other", now=lambda: now[0]).of(header(made)) is None
    assert tickets.of(header(made, "alice")) is None
    assert tickets.of(f"Bearer {made}") is None
    for cut in range(0, len(made), 7):
        assert tickets.of(header(made[:cut])) is None
        changed = "A" if made[cut] != "A" else "B"
        assert tickets.of(header(made[:cut] + changed + made[cut + 1 :])) is None
    now[0] += TICKET_SECONDS + 1
    assert tickets.of(header(made)) is None


@pytest.mark.parametrize("header", [None, "", "Basic", "Basic !", "Basic \xff", "Bearer abc", "Basic gICA"])
def test_a_header_that_is_none_has_no_user(header: str | None) -> None:
    assert basic(header) == ("", "")
