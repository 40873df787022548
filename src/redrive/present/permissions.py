"""Users, and what each may do. No surface grants or asks for anything else."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from ..errors import ConfigError, near_miss


class Permission(StrEnum):
    """What a user may do. Every page needs `view`; `view_bodies` shows bodies, headers and results."""

    VIEW = "view"
    VIEW_BODIES = "view_bodies"
    RETRY = "retry"
    REDRIVE = "redrive"
    EDIT = "edit"
    DISCARD = "discard"
    PAUSE = "pause"
    FLOW = "flow"
    APPROVE = "approve"
    ADMIN = "admin"


ALL = frozenset(Permission)


class User(Struct, frozen=True):
    """An authenticated user: the name for the audit log (empty: the process's own user), and the permissions."""

    name: str = ""
    permissions: frozenset[Permission] = ALL

    def may(self, permission: str) -> bool:
        return Permission(permission) in self.permissions

    def need(self, permission: str) -> None:
        """Raise Denied if the user does not have this permission."""
        if not self.may(permission):
            name = self.name or "you"
            raise Denied(403, f"{name} may not do this", f"it needs the permission '{permission}'", "ask who grants it")


class Denied(Exception):
    """Raised if a request is refused: its user is unknown (401), or lacks a permission (403)."""

    status: int
    what: str
    why: str
    next: str

    def __init__(self, status: int, what: str, why: str, next: str) -> None:
        super().__init__(what)
        self.status, self.what, self.why, self.next = status, what, why, next


def as_permissions(given: Iterable[str]) -> frozenset[Permission]:
    """Return the permissions with these names, and `view`. Raises ConfigError for an unknown name."""
    known = [str(permission) for permission in Permission]
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            near = near_miss(str(name), known)
            meant = f"; did you mean {near!r}?" if near else ""
            raise ConfigError(f"there is no permission {name!r}{meant} Known: {', '.join(known)}")
    return frozenset(map(Permission, names)) | {Permission.VIEW}
