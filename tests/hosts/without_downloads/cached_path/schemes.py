"""What OLMo-core registers its own clients with."""

from __future__ import annotations


class SchemeClient:
    recoverable_errors = ()


class S3Client(SchemeClient):
    pass


def add_scheme_client(client: type[SchemeClient]) -> None:
    """Take note of nothing."""
