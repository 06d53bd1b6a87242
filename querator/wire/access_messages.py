"""Messages of the access calls: our tokens, and the namespaces, users, keys and roles of the original service.

The daemon refuses all access calls of the original service, but decodes their requests first, as the wire contract
says.
"""

from __future__ import annotations

from querator.wire.messages import Int32, Message, Timestamp

# -- tokens.*


class TokensCreateRequest(Message):
    name: str = ""
    """The name of the token: letters, digits, `-`, `_`, `.` and `@`, up to 64."""
    role: str = ""
    """`viewer`, `producer`, `consumer`, `operator` or `admin`."""
    queues: list[str] = []
    """Glob patterns of the queue names that the token is for; none means every queue."""
    expires_at: Timestamp | None = None
    """The token is valid until this time. Absent: until it is revoked."""


class TokenSecret(Message):
    name: str = ""
    token: str = ""
    """The token itself. It is shown only in this answer."""
    prefix: str = ""
    """The first characters of the token, which lists show."""
    role: str = ""
    queues: list[str] = []
    expires_at: Timestamp | None = None


class TokensListRequest(Message):
    pass


class TokenInfo(Message):
    name: str = ""
    prefix: str = ""
    role: str = ""
    queues: list[str] = []
    created_at: Timestamp | None = None
    created_by: str = ""
    """Who created the token."""
    expires_at: Timestamp | None = None
    last_used_at: Timestamp | None = None
    """When the token was last used, to the minute; absent if never."""
    state: str = ""
    """`valid`, `expired`, or `replaced` for the old secret of a token that was rotated."""


class TokensListResponse(Message):
    items: list[TokenInfo] = []
    """The tokens."""


class TokenRequest(Message):
    name: str = ""


class TokensRotateRequest(Message):
    name: str = ""
    grace: str = ""
    """How long the old secret stays valid, as a duration; absent means not at all."""


class TokensWhoamiRequest(Message):
    pass


class TokensWhoamiResponse(Message):
    name: str = ""
    """The name of the token, user or certificate."""
    kind: str = ""
    """How the caller is known: `token`, `user`, `certificate` or `anonymous`."""
    role: str = ""
    queues: list[str] = []
    expires_at: Timestamp | None = None
    """When the token expires."""


# -- audit.list


class AuditListRequest(Message):
    since: Timestamp | None = None
    """Only entries from this time on. Then the oldest ones come first; otherwise the answer has the latest ones."""
    who: str = ""
    """Only entries about this name, or about names that match this pattern."""
    queue_name: str = ""
    """Only entries about this queue, or about queues that match this pattern."""
    limit: Int32 = 0
    """The largest number of entries; 0 means 1,000."""


class AuditEntry(Message):
    at: Timestamp | None = None
    """When the call was answered. No two entries have the same time."""
    who: str = ""
    """The name of the token, user or certificate."""
    kind: str = ""
    address: str = ""
    """Where the call came from."""
    call: str = ""
    """The name of the call."""
    queue_name: str = ""
    """The name of the queue."""
    partitions: list[Int32] = []
    """The numbers of the partitions; none means all."""
    asked: str = ""
    """The fields of the request as JSON, without payloads."""
    outcome: str = ""
    """`done`, or the code and the text of the error."""
    duration: str = ""
    """How long the call took."""
    unrecorded: Int32 = 0
    """How many denials before this one were left out, because there were too many."""


class AuditListResponse(Message):
    items: list[AuditEntry] = []
    """The entries, oldest first."""


# -- what the original service has


class NamespaceInfo(Message):
    name: str = ""
    description: str = ""
    created_at: Timestamp | None = None
    api_key_tag: str = ""


class NamespacesListRequest(Message):
    pivot: str = ""
    limit: Int32 = 0


class NamespacesListResponse(Message):
    items: list[NamespaceInfo] = []


class NamespacesDeleteRequest(Message):
    name: str = ""


class User(Message):
    id: str = ""
    username: str = ""
    external_id: str = ""
    email: str = ""
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class UsersCreateRequest(Message):
    username: str = ""
    email: str = ""
    external_id: str = ""


class UsersCreateResponse(Message):
    id: str = ""


class UsersListRequest(Message):
    limit: Int32 = 0
    pivot: str = ""


class UsersListResponse(Message):
    items: list[User] = []


class UsersDeleteRequest(Message):
    id: str = ""


class APIKeyMetadata(Message):
    id: str = ""
    user_id: str = ""
    namespace_scope: str = ""
    name: str = ""
    prefix: str = ""
    expires_at: Timestamp | None = None
    last_used_at: Timestamp | None = None
    created_at: Timestamp | None = None


class APIKeysCreateRequest(Message):
    user_id: str = ""
    name: str = ""
    namespace_scope: str = ""
    expires_at: Timestamp | None = None
    key_tag: str = ""


class APIKeysCreateResponse(Message):
    id: str = ""
    key: str = ""
    prefix: str = ""


class APIKeysListRequest(Message):
    user_id: str = ""
    limit: Int32 = 0
    pivot: str = ""


class APIKeysListResponse(Message):
    items: list[APIKeyMetadata] = []


class APIKeysDeleteRequest(Message):
    id: str = ""


class Role(Message):
    id: str = ""
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []
    created_at: Timestamp | None = None


class RolesCreateRequest(Message):
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []


class RolesCreateResponse(Message):
    id: str = ""


class RolesUpdateRequest(Message):
    namespace: str = ""
    name: str = ""
    permissions: list[str] = []


class RolesListRequest(Message):
    namespace: str = ""
    limit: Int32 = 0
    pivot: str = ""


class RolesListResponse(Message):
    items: list[Role] = []


class RolesDeleteRequest(Message):
    namespace: str = ""
    name: str = ""


class RoleBinding(Message):
    id: str = ""
    namespace: str = ""
    user_id: str = ""
    role_id: str = ""
    created_at: Timestamp | None = None


class RoleBindingsCreateRequest(Message):
    namespace: str = ""
    role_name: str = ""
    user_id: str = ""


class RoleBindingsCreateResponse(Message):
    id: str = ""


class RoleBindingsListRequest(Message):
    namespace: str = ""
    user_id_filter: str = ""
    limit: Int32 = 0
    pivot: str = ""


class RoleBindingsListResponse(Message):
    items: list[RoleBinding] = []


class RoleBindingsDeleteRequest(Message):
    namespace: str = ""
    role_name: str = ""
    user_id: str = ""
