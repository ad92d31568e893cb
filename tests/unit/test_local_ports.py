"""A cluster keeps its ports from the moment it chooses them, though its services listen there much later."""

import socket

import pytest

from weftd.cli.local.errors import LocalError
from weftd.cli.local.ports import PortClaim, claimed, free_port


def listening(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen()
    return made


def test_of_two_clusters_that_start_at_once_only_one_gets_the_usual_port() -> None:
    usual = free_port()
    first, second = claimed(None, usual, "--port"), claimed(None, usual, "--port")
    assert first.port == usual != second.port
    first.release()
    second.release()
    third = claimed(None, usual, "--port")
    assert third.port == usual
    third.release()


def test_a_claimed_port_is_taken_for_another_cluster_that_asks_for_it() -> None:
    claim = PortClaim(0)
    with pytest.raises(LocalError, match=f"port {claim.port} is taken; choose another with --port"):
        claimed(claim.port, 1, "--port")
    claim.release()


def test_a_service_listens_on_a_claimed_port_and_does_so_again_after_it_was_killed() -> None:
    claim = PortClaim(0)
    for _ in range(2):
        with listening(claim.port), socket.create_connection(("127.0.0.1", claim.port)):
            pass
    claim.release()


def test_a_port_on_which_another_program_listens_is_taken() -> None:
    usual = free_port()
    with listening(usual):
        claim = claimed(None, usual, "--port")
        assert claim.port != usual
        claim.release()
        with pytest.raises(LocalError):
            claimed(usual, 1, "--port")


def test_a_claimed_port_is_given_to_no_connection() -> None:
    claim = PortClaim(0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", claim.port))
    claim.release()
