"""Decoding JSON bodies (wire contract 1.7), and the errors for invalid ones (1.3)."""

from __future__ import annotations

import base64
import time

import pytest

from querator.errors import ContentError
from querator.wire import json, strict
from querator.wire.access_messages import APIKeysCreateRequest, NamespaceInfo
from querator.wire.messages import (
    Job,
    Message,
    PartitionsMigrateRequest,
    PartitionsPauseRequest,
    PartitionsRestoreRequest,
    QueueLeaseRequest,
    QueueProduceItem,
    QueueProduceRequest,
    QueueRetryItem,
    QueueRetryRequest,
    QueuesInfoRequest,
    QueueStatsResponse,
    StorageItem,
    StorageItemsDeleteRequest,
    StorageItemsImportRequest,
    payloads,
)

LIMIT = 5_000_000


@pytest.mark.parametrize(
    "body,message",
    [
        (b"", "proto: syntax error (line 1:1): unexpected token "),
        (b"  \n ", "proto: syntax error (line 2:2): unexpected token "),
        (b"hello", "proto: syntax error (line 1:1): invalid value hello"),
        (b"null", "proto: syntax error (line 1:1): unexpected token null"),
        (b"[]", "proto: syntax error (line 1:1): unexpected token ["),
        (b'"x"', 'proto: syntax error (line 1:1): unexpected token "x"'),
        (b"\xef\xbb\xbf{}", "proto: syntax error (line 1:1): invalid value \ufeff"),
        (b'{"queue_name": "x"', "proto: unexpected EOF"),
        (b'{"queue_name"', "proto: unexpected EOF"),
        (b'{"queue_name": "x', "proto: unexpected EOF"),
        (b'{"queue_name": "x"} x', "proto: syntax error (line 1:21): invalid value x"),
        (b'{"queue_name": "x"}{}', "proto: syntax error (line 1:20): unexpected token {"),
        (b'{"queue_name": "x"} // hello', "proto: syntax error (line 1:21): invalid value /"),
        (b'{"queue_name": "x",}', "proto: syntax error (line 1:20): unexpected token }"),
        (
            b'{"queue_name" "x"}',
            'proto: syntax error (line 1:15): unexpected character ", missing ":" after field name',
        ),
        (b'{"queue_name": "x" : "y"}', "proto: syntax error (line 1:20): invalid value :"),
        (b"{'queue_name': 'x'}", "proto: syntax error (line 1:2): invalid value '"),
        (b'{queue_name: "x"}', "proto: syntax error (line 1:2): invalid value queue_name"),
        (b'{"queue_name": NaN}', "proto: syntax error (line 1:16): invalid value NaN"),
        (b'{"queue_name":}', "proto: syntax error (line 1:15): unexpected token }"),
        (b'{"queue_name": "a\x00b"}', "proto: syntax error (line 1:16): invalid character '\\x00' in string"),
        (b'{"queue_name": "a\nb"}', "proto: syntax error (line 1:16): invalid character '\\n' in string"),
        (b'{"queue_name": "\xff"}', "proto: syntax error (line 1:16): invalid UTF-8 in string"),
        (b'{"queue_name": "\\q"}', 'proto: syntax error (line 1:16): invalid escape code "\\\\q" in string'),
        (
            b'{"queue_name": "\\ud800 12345"}',
            'proto: syntax error (line 1:16): invalid escape code "\\\\ud800" in string',
        ),
        (b'{"foo": 1}', 'proto: (line 1:2): unknown field "foo"'),
        (b'{"Queue_Name": "x"}', 'proto: (line 1:2): unknown field "Queue_Name"'),
        (b'{"queue_name":"x","queue_name":"y"}', 'proto: (line 1:19): duplicate field "queue_name"'),
        (b'{"queue_name":"x","queueName":null}', 'proto: (line 1:19): duplicate field "queueName"'),
        (b'{"queue_name":1}', "proto: (line 1:15): invalid value for string type: 1"),
        (b'{"queue_name":true}', "proto: (line 1:15): invalid value for string type: true"),
        (b'{"queue_name":["x"]}', "proto: (line 1:15): invalid value for string type: ["),
        ('{\n "é": 1}'.encode(), 'proto: (line 2:2): unknown field "é"'),
        ('{"queue_name":\n"é", 1}'.encode(), "proto: syntax error (line 2:6): unexpected token 1"),
    ],
)
def test_a_mistake_is_told_with_its_place(body: bytes, message: str) -> None:
    with pytest.raises(ContentError) as caught:
        json.decode(QueuesInfoRequest, body)
    assert caught.value.message == message


TIME = "google.protobuf.Timestamp"


@pytest.mark.parametrize(
    "kind,body,message",
    [
        (StorageItemsImportRequest, '{"items":[null]}', "syntax error (line 1:11): unexpected token null"),
        (StorageItemsImportRequest, '{"items":{}}', "syntax error (line 1:10): unexpected token {"),
        (StorageItemsImportRequest, '{"items":[{},]}', "syntax error (line 1:14): unexpected token ]"),
        (StorageItemsImportRequest, '{"items":[{"nope":1}]}', '(line 1:12): unknown field "nope"'),
        (StorageItem, '{"is_leased":"true"}', '(line 1:14): invalid value for bool type: "true"'),
        (StorageItem, '{"is_leased":1}', "(line 1:14): invalid value for bool type: 1"),
        (StorageItem, '{"payload":5}', "(line 1:12): invalid value for bytes type: 5"),
        (StorageItemsDeleteRequest, '{"ids":[null]}', "(line 1:9): invalid value for string type: null"),
        (StorageItemsDeleteRequest, '{"ids":["a" "b"]}', 'syntax error (line 1:13): unexpected token "b"'),
        (StorageItemsDeleteRequest, '{"partition":3.5}', "(line 1:14): invalid value for int32 type: 3.5"),
        (QueueRetryItem, '{"retry_at":"soon"}', f'(line 1:13): invalid {TIME} value "soon"'),
        (QueueRetryItem, '{"retry_at":5}', "syntax error (line 1:13): unexpected token 5"),
        (
            QueueRetryItem,
            '{"retry_at":"0000-01-01T00:00:00Z"}',
            f'(line 1:13): {TIME} value out of range: "0000-01-01T00:00:00Z"',
        ),
        (QueueRetryRequest, '{"request_timeout":"5s"}', '(line 1:2): unknown field "request_timeout"'),
    ],
)
def test_a_mistake_within_is_told_with_its_place(kind: type[Message], body: str, message: str) -> None:
    with pytest.raises(ContentError) as caught:
        json.decode(kind, body.encode())
    assert caught.value.message == "proto: " + message


@pytest.mark.parametrize("text", ["3", '"3"', "3.0", "3e0", "3E+0", "30e-1", "0.3e1", '"3e0"', '"3.0"', '"30e-1"'])
def test_an_int32_has_many_spellings(text: str) -> None:
    assert json.decode(QueueLeaseRequest, f'{{"batch_size":{text}}}'.encode()).batch_size == 3


@pytest.mark.parametrize(
    "text,value",
    [("0", 0), ("-0", 0), ("null", 0), ("2147483647", (1 << 31) - 1), ("2.147483647e9", (1 << 31) - 1), ('"-3"', -3)],
)
def test_an_int32_has_32_bits(text: str, value: int) -> None:
    assert json.decode(QueueLeaseRequest, f'{{"batch_size":{text}}}'.encode()).batch_size == value


@pytest.mark.parametrize(
    "text",
    [
        *("3.5", "03", "+3", "0x3", "3.", ".3", "1e400", "1e-1", "1e99999999999999999999999", "1" * 5000),
        *('"3.5"', '""', '" 3"', '"3 "', '"03"', '"+3"', '"three"', '"٣"', "true", "[3]", "2147483648", "-2147483649"),
    ],
)
def test_other_spellings_are_no_int32(text: str) -> None:
    with pytest.raises(ContentError):
        json.decode(QueueLeaseRequest, f'{{"batch_size":{text}}}'.encode())


@pytest.mark.parametrize(
    "text,data",
    [
        ("+/+/YQ==", b"\xfb\xff\xbf\x61"),
        ("+/+/YQ", b"\xfb\xff\xbf\x61"),
        ("-_-_YQ==", b"\xfb\xff\xbf\x61"),
        ("-_-_YQ", b"\xfb\xff\xbf\x61"),
        ("", b""),
        ("YWI=", b"ab"),
        ("YWI", b"ab"),
        pytest.param("YR==", b"a", id="stray bits"),
        pytest.param("YR", b"a", id="stray bits, unpadded"),
        pytest.param("YWJj\\r\\nYWJj", b"abcabc", id="a line break"),
        pytest.param("YWJj\\n", b"abc", id="a line break at the end"),
    ],
)
def test_bytes_come_in_both_alphabets_padded_or_not(text: str, data: bytes) -> None:
    body = f'{{"items":[{{"bytes":"{text}"}}]}}'.encode()
    assert json.decode(QueueProduceRequest, body).items == [QueueProduceItem(bytes_=data)]


@pytest.mark.parametrize(
    "text",
    [
        *("+_+_YQ==", "YW Jj", "YW\\tJj", "!!!!", "YWJ\u00e9"),
        *("Y", "Y===", "=", "====", "YQ==YQ==", "YQ=", "YQ==\\n", "YQ\\n\\n"),
    ],
)
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(ContentError, match="invalid value for bytes type"):
        json.decode(QueueProduceRequest, f'{{"items":[{{"bytes":"{text}"}}]}}'.encode())


def test_a_payload_is_the_bytes_or_else_the_text() -> None:
    request = json.decode(QueueProduceRequest, '{"items":[{"bytes":"YQ==","utf8":"b"},{"utf8":"é"},{}]}'.encode())
    assert payloads(request) == [b"a", "é".encode(), b""] == [item.payload for item in request.items]


def test_null_is_unset() -> None:
    body = b'{"queue_name":null,"request_timeout":"1s","items":null,"request_id":null}'
    assert json.decode(QueueProduceRequest, body) == QueueProduceRequest(request_timeout="1s")


def test_proto_names_are_understood() -> None:
    body = b'{"queueName":"q","requestTimeout":"5s","items":[{"enqueueAt":"1970-01-01T00:00:01Z","utf8":"x"}]}'
    item = QueueProduceItem(enqueue_at=1_000_000, utf8="x")
    assert json.decode(QueueProduceRequest, body) == QueueProduceRequest("q", "5s", [item])


def test_some_fields_have_one_spelling_only() -> None:
    assert json.decode(StorageItem, b'{"source_id":"s"}').source_id == "s"
    assert len(json.decode(QueueStatsResponse, b'{"logicalQueues":[{}]}').logical_queues) == 1
    assert json.decode(NamespaceInfo, b'{"createdAt":"1970-01-01T00:00:00Z"}').created_at == 0
    for kind, body in (
        (StorageItem, b'{"sourceId":"s"}'),
        (QueueStatsResponse, b'{"logical_queues":[{}]}'),
        (APIKeysCreateRequest, b'{"userId":"u"}'),
    ):
        with pytest.raises(ContentError, match="unknown field"):
            json.decode(kind, body)


def test_words_of_python_are_fields_like_others() -> None:
    assert json.decode(PartitionsPauseRequest, b'{"for":"15m","partitions":[0,1]}').for_ == "15m"
    assert json.decode(PartitionsRestoreRequest, b'{"from":"backups"}').from_ == "backups"


def test_partition_zero_is_told_from_no_partition() -> None:
    assert json.decode(PartitionsMigrateRequest, b'{"to_partition":0}').to_partition == 0
    assert json.decode(PartitionsMigrateRequest, b"{}").to_partition is None
    assert json.decode(PartitionsMigrateRequest, b'{"to_partition":null}').to_partition is None
    assert json.encode(PartitionsMigrateRequest(to_partition=0)) == b'{"to_partition":0}'


def test_a_count_of_64_bits_is_a_number_and_may_be_a_text() -> None:
    assert json.encode(Job(done=1 << 40)) == b'{"done":1099511627776}'
    assert (
        json.decode(Job, b'{"done":"1099511627776"}')
        == json.decode(Job, b'{"done":1099511627776}')
        == Job(done=1 << 40)
    )
    with pytest.raises(ContentError, match="int64"):
        json.decode(Job, b'{"done":9223372036854775808}')


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"[" * LIMIT, id="brackets"),
        pytest.param(b'{"queue_name":' * (LIMIT // 14), id="nested objects"),
        pytest.param(b"{" + b" " * LIMIT, id="spaces"),
        pytest.param(b'{"queue_name":"' + b"a" * LIMIT, id="a string without an end"),
        pytest.param(b'{"queue_name":"' + b"\\\\" * (LIMIT // 2), id="backslashes without an end"),
        pytest.param(b'{"queue_name":"' + b'\\"' * (LIMIT // 2), id="quotes without an end"),
        pytest.param(b'{"queue_name"' + b" " * LIMIT + b"}", id="no colon"),
        pytest.param(b'{"queue_name":' + b"1" * LIMIT + b"}", id="a long number"),
        pytest.param(b'{"' + b"a" * LIMIT + b'":1}', id="a long name"),
        pytest.param(b'{"queueName":"x"}' + b" " * LIMIT + b"x", id="spaces before the last mistake"),
    ],
)
def test_no_body_of_the_allowed_size_takes_long_to_refuse(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ContentError):
        json.decode(QueuesInfoRequest, body)
    assert time.process_time() - began < 2


def test_the_strict_reader_is_quick_enough_for_a_large_body() -> None:
    encoded = base64.b64encode(b"x" * 150).decode()
    item = f'{{"bytes" : "{encoded}", "kind": null}}'
    body = f'{{"queueName":"q","items":[{",".join([item] * (LIMIT // len(item)))}]}}'.encode()
    began = time.process_time()
    assert len(strict.decode(QueueProduceRequest, body).items) == LIMIT // len(item)
    assert time.process_time() - began < 2
