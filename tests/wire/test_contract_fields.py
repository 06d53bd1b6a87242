"""The field numbers, names and types of the wire contract (1.5 and 1.9)."""

from __future__ import annotations

import pytest

from querator.wire import access_messages, messages, schema

CONTRACT = """
Reply: 1 code int32, 2 code_text string, 3 message string, 4 details map
QueueProduceRequest: 1 queue_name string, 2 request_timeout string, 3 items QueueProduceItem[], 15 request_id string, 210 first_attempt bool
QueueProduceItem: 1 encoding string, 2 kind string, 3 reference string, 4 enqueue_at timestamp, 5 bytes bytes, 6 utf8 string
QueueLeaseRequest: 1 queue_name string, 2 batch_size int32, 3 client_id string, 4 request_timeout string, 15 complete_ids string[]
QueueLeaseResponse: 1 queue_name string, 2 partition int32, 3 items QueueLeaseItem[]
QueueLeaseItem: 1 encoding string, 2 kind string, 3 reference string, 4 id string, 5 attempts int32, 6 lease_deadline timestamp, 7 bytes bytes
QueueCompleteRequest: 1 queue_name string, 2 partition int32, 3 request_timeout string, 4 ids string[]
QueueRetryRequest: 1 queue_name string, 2 partition int32, 3 items QueueRetryItem[], 210 purpose string
QueueRetryItem: 1 id string, 2 retry_at timestamp, 3 dead bool, 130 unused bool, 140 reason string
QueueInfo: 1 queue_name string, 2 created_at timestamp, 3 updated_at timestamp, 4 dead_queue string, 5 reference string, 6 lease_timeout string, 7 expire_timeout string, 8 max_attempts int32, 9 requested_partitions int32, 10 partitions PartitionInfo[], 11 namespace string, 130 retention string, 170 figures QueueFigures
PartitionInfo: 1 partition int32
QueueClearRequest: 1 queue_name string, 3 scheduled bool, 4 queue bool, 5 destructive bool, 151 counts bool
QueueReloadRequest: 1 queue_name string
QueueStatsRequest: 1 queue_name string
QueuesInfoRequest: 1 queue_name string, 130 extended bool
QueueStatsResponse: 1 queue_name string, 2 logicalQueues QueueLogicalStats[]
QueueLogicalStats: 6 produce_waiting int32, 7 lease_waiting int32, 8 complete_waiting int32, 10 in_flight int32, 11 partitions QueuePartitionStats[]
QueuePartitionStats: 1 partition int32, 2 total int32, 3 total_leased int32, 4 failures int32, 5 average_age string, 6 average_leased_age string, 7 scheduled int32
QueuesListRequest: 2 pivot string, 3 limit int32, 4 namespace string, 130 extended bool
QueuesListResponse: 1 items QueueInfo[]
QueuesDeleteRequest: 1 queue_name string, 2 force bool
StorageItemsListRequest: 1 queue_name string, 2 partition int32, 3 pivot string, 4 limit int32, 130 extended bool
StorageItemsListResponse: 1 items StorageItem[]
StorageItemsImportRequest: 1 queue_name string, 2 partition int32, 3 items StorageItem[], 130 extended bool
StorageItemsImportResponse: 2 items StorageItem[]
StorageItemsDeleteRequest: 1 queue_name string, 2 partition int32, 3 ids string[], 152 purpose string
StorageItem: 1 id string, 2 source_id string, 3 is_leased bool, 4 lease_deadline timestamp, 5 expire_deadline timestamp, 6 dead_deadline timestamp, 7 created_at timestamp, 8 updated_at timestamp, 9 enqueue_at timestamp, 10 attempts int32, 11 max_attempts int32, 12 reference string, 13 encoding string, 14 kind string, 15 payload bytes, 140 client_id string, 141 leased_at timestamp, 142 token_name string
NamespaceInfo: 1 name string, 2 description string, 3 created_at timestamp, 4 api_key_tag string
User: 1 id string, 2 username string, 3 external_id string, 4 email string, 5 created_at timestamp, 6 updated_at timestamp
APIKeyMetadata: 1 id string, 2 user_id string, 3 namespace_scope string, 4 name string, 5 prefix string, 6 expires_at timestamp, 7 last_used_at timestamp, 8 created_at timestamp
APIKeysCreateRequest: 1 user_id string, 2 name string, 3 namespace_scope string, 4 expires_at timestamp, 5 key_tag string
Role: 1 id string, 2 namespace string, 3 name string, 4 permissions string[], 5 created_at timestamp
RoleBinding: 1 id string, 2 namespace string, 3 user_id string, 4 role_id string, 5 created_at timestamp
RoleBindingsListRequest: 1 namespace string, 2 user_id_filter string, 3 limit int32, 4 pivot string
"""  # noqa: E501 - a line per message reads better than one per field


@pytest.mark.parametrize("line", CONTRACT.strip().splitlines())
def test_a_message_is_as_the_contract_says(line: str) -> None:
    name, _, wanted = line.partition(": ")
    kind = getattr(messages, name, None) or getattr(access_messages, name)
    numbers = {field.json_name: field.number for field in schema.generated(kind).DESCRIPTOR.fields}
    found = ", ".join(
        f"{numbers[field.json_name]} {field.json_name} {field.child.__name__ if field.child else field.kind}"
        + "[]" * field.repeated
        for field in schema.fields(kind)
    )
    assert found == wanted
