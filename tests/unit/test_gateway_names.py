"""A sentence has the names of jobs, not their ids, for those who may see them."""

from tests.support.builders import job
from weft.store.tenants import Access
from weftd.gateway.readmodel.explanations import names_seen, with_names

OWN, OTHER = job("j-own", tenant="alice"), job("j-other", tenant="bob")


def test_a_name_stands_in_place_of_an_id_that_the_reader_may_see() -> None:
    names = names_seen(Access(tenant="alice", admin=False), [OWN], [OTHER])
    assert with_names("waits until j-own has succeeded", names) == f"waits until {OWN.name} has succeeded"
    assert with_names("j-other is ahead of it", names) == "j-other is ahead of it"
    assert with_names("pre-empted by big (j-own)", names) == "pre-empted by big (j-own)"
