"""Blobs as objects under one prefix of an S3 bucket."""

from __future__ import annotations

import contextlib
import importlib.util
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote

from ..awsapi import client as aws
from ..errors import BlobsUnavailable, ConfigError
from ..urls import option_shown, shown
from .place import is_key

AT_ONCE = 8  # most concurrent uploads of one put
DELETES_MAX = 1000  # most keys in one call
OPTIONS = ("region", "endpoint")
EXPECTED = "expected s3://BUCKET/PREFIX"
_ABSENT = ("NoSuchKey", "404")
_EMPTY = "InvalidRange"  # S3's error when a range of an empty object is read


class S3Blobs:
    """Blobs in `bucket`, one object for each, named by `prefix` and the blob's key.

    An object is written completely or not at all, and is durable when a put returns. The client is made at first use.
    """

    bucket: str
    prefix: str

    def __init__(self, bucket: str, prefix: str, *, region: str | None = None, endpoint: str | None = None) -> None:
        self.bucket, self.prefix = bucket, prefix
        self._region, self._endpoint = region, endpoint
        self._lock = threading.Lock()

    @cached_property
    def _one_client(self) -> Any:
        return aws.client("s3", region=self._region, endpoint=self._endpoint, pool=AT_ONCE)

    @property
    def _client(self) -> Any:
        with self._lock:  # boto3 must not make two clients at the same time
            return self._one_client

    def _name(self, key: str) -> str:
        if not is_key(key):  # callers check it too; this is the last check before a name is made
            raise ValueError(f"{key!r} is not a blob's key")
        return self.prefix + key

    @property
    def stored(self) -> S3Blobs:
        return self

    def make(self) -> None:
        with self._translate("cannot reach it"):
            self._client.head_bucket(Bucket=self.bucket)

    def put(self, blobs: Mapping[str, bytes]) -> None:
        items = list(blobs.items())
        with self._translate("cannot write a blob"):
            if len(items) == 1:
                self._write(*items[0])
                return
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(AT_ONCE, "redrive-blobs") as threads:
                list(threads.map(lambda item: self._write(*item), items))

    def _write(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=self._name(key), Body=body)

    def get(self, key: str, bytes_max: int) -> bytes | None:
        name = self._name(key)
        with self._translate(f"cannot read blob {key}"):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=name, Range=f"bytes=0-{max(bytes_max, 1) - 1}")
                body: bytes = answer["Body"].read(bytes_max)
            except aws.errors() as error:
                if aws.code_of(error) == _EMPTY:
                    return b""
                if aws.code_of(error) in _ABSENT:
                    return None
                raise
        return body

    def copy(self, key: str, to: str) -> bool:
        source = {"Bucket": self.bucket, "Key": self._name(key)}
        with self._translate(f"cannot copy blob {key}"):
            try:
                self._client.copy_object(Bucket=self.bucket, Key=self._name(to), CopySource=source)
            except aws.errors() as error:
                if aws.code_of(error) in _ABSENT:
                    return False
                raise
        return True

    def delete(self, keys: Iterable[str]) -> None:
        with self._translate("cannot remove a blob"):
            every = map(self._name, keys)
            while names := list(islice(every, DELETES_MAX)):
                wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
                failed = self._client.delete_objects(Bucket=self.bucket, Delete=wanted).get("Errors")
                if failed:
                    raise BlobsUnavailable(
                        f"cannot remove {len(failed)} of {len(names)} blobs from {self._place}: "
                        f"{failed[0].get('Code')}: {failed[0].get('Message')}"
                    )

    def listed(self) -> Iterator[str]:
        with self._translate("cannot list it"):
            more: dict[str, str] = {}
            while True:
                page = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self.prefix, **more)
                for entry in page.get("Contents") or ():
                    key = entry["Key"].removeprefix(self.prefix)
                    if is_key(key):  # other objects are not blobs
                        yield key
                if not page.get("IsTruncated"):
                    return
                more = {"ContinuationToken": page["NextContinuationToken"]}

    @property
    def _place(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @contextlib.contextmanager
    def _translate(self, what: str) -> Iterator[None]:
        """Raise BlobsUnavailable for every error of AWS, even for a missing permission, which may be granted later."""
        try:
            yield
        except ConfigError as error:  # raised without a client: there is no region, or no such profile
            raise BlobsUnavailable(f"{self._place}: {what}: {error}") from error
        except _client_errors() as error:
            raise BlobsUnavailable(str(aws.failure(error, f"{self._place}: {what}"))) from error


def _client_errors() -> tuple[type[Exception], ...]:
    """Return all exceptions that a call may raise, also while a body is read."""
    return aws.errors() if importlib.util.find_spec("boto3") else (OSError,)


def from_url(url: str, parts: SplitResult, place: str) -> S3Blobs:
    """Return the part `place` of `s3://BUCKET/PREFIX?region=…&endpoint=…`. Raises ConfigError for an invalid URL."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise ConfigError(
            f"blobs URL {shown(url)!r}: unknown option {option_shown(unknown[0])}; known: {', '.join(OPTIONS)}"
        )
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    if not bucket or "@" in bucket or ":" in bucket or parts.fragment or "\0" in prefix:
        raise ConfigError(f"blobs URL {shown(url)!r}: {EXPECTED}, and nothing more than ?region= and &endpoint=")
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError(f"blobs URL {shown(url)!r}: AWS needs its driver; pip install 'redrive[aws]'")
    whole = "".join(f"{part}/" for part in (prefix, place) if part)
    return S3Blobs(bucket, whole, region=options.get("region"), endpoint=options.get("endpoint"))
