"""Dask with jobs as its workers: `pip install distributed`."""

from distributed import Client

from weft.integrations.dask import WeftCluster


def square(number: int) -> int:
    return number * number


def main() -> None:
    # On several machines `host` is an address of this one that the nodes reach.
    with WeftCluster(2, host="127.0.0.1", name="squares", cpus=0.5) as cluster, Client(cluster) as client:
        total = client.submit(sum, client.map(square, range(1000))).result(timeout=120)
    print(f"the sum of the squares below 1000 is {total}")


if __name__ == "__main__":
    main()
