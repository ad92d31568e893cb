"""The places in object stores that a job names, such as `s3://bucket/path`, and where its runs see what is there."""

OBJECT_URL_PATTERN = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\x00-\x1f\x7f]{0,1000})?$(?!\n)"
MOUNT_VARIABLE = "WEFT_MOUNT_"
OUTPUT_VARIABLE = "WEFT_OUTPUT_"


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """`s3://bucket/a/b/` → `bucket`, `a/b`."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return bucket, prefix.removesuffix("/")


def fault_of_url(url: str) -> str:
    """Why a URL that has the pattern names no place; empty: it names one."""
    bucket, prefix = bucket_and_prefix(url)
    if ".." in bucket:
        return f"{url} has a bucket with '..'"
    parts = prefix.split("/") if prefix else []
    if any(part in ("", ".", "..") for part in parts):
        return f"{url} must not contain '.', '..' or an empty name between two '/'"
    return ""


def variable_of(prefix: str, path: str) -> str:
    """The variable in which a run finds the path: `/data/train-2` → `WEFT_MOUNT_DATA_TRAIN_2`."""
    plain = plain_path(path).removeprefix("/")
    return prefix + "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in plain).upper()


def plain_path(path: str) -> str:
    """The path without empty parts and '.'."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def is_within(path: str, folder: str) -> bool:
    """Return True if a plain path is the folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
