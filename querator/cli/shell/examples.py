"""Examples for every command, shown in its help and in its manual page."""

from __future__ import annotations

from typing import Any, Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": ("querator queues create mail", "querator queue produce mail 'dear Ann'", "querator queues list -o json"),
    "daemon": ("querator daemon run --data /var/lib/querator",),
    "daemon run": (
        "querator daemon run --data /var/lib/querator --http localhost:2319",
        "querator daemon run --config /etc/querator.toml",
        "querator daemon run --http :2319 --tls-cert server.crt --tls-key server.key",
        "querator daemon run --archive s3://backups/querator",
        "querator daemon run --archive s3://backups/querator --data /var/lib/standby --standby",
    ),
    "daemon status": ("querator daemon status --data /var/lib/querator",),
    "daemon promote": ("querator daemon promote --data /var/lib/querator",),
    "daemon stop": ("querator daemon stop --timeout 30s",),
    "queues": ("querator queues list",),
    "queues create": (
        "querator queues create mail --partitions 2 --lease-timeout 30s",
        "querator queues create mail --max-attempts 3 --dead-queue mail-dead",
    ),
    "queues list": ("querator queues list", "querator queues list --columns queue_name,ready,oldest_age"),
    "queues show": ("querator queues show mail",),
    "queues update": ("querator queues update mail --partitions 4",),
    "queues delete": ("querator queues delete mail --dry-run",),
    "queue": ("querator queue stats mail",),
    "queue produce": (
        "querator queue produce mail 'dear Ann' --kind welcome",
        "seq 100 | querator queue produce mail --lines --request-id first-hundred",
        "querator queue produce mail --file letter.json --delay 1h",
    ),
    "queue lease": ("querator queue lease mail -n 10 --timeout 30s",),
    "queue complete": ("querator queue complete mail 2wLKxMaJ0RdmLtTTIEvfy9uHvvZ",),
    "queue retry": ("querator queue retry mail 2wLKxMaJ0RdmLtTTIEvfy9uHvvZ --delay 5m",),
    "queue extend": ("querator queue extend mail 2wLKxMaJ0RdmLtTTIEvfy9uHvvZ --by 10m",),
    "queue consume": ("querator queue consume mail --exec ./send-mail --concurrency 4",),
    "queue leases": ("querator queue leases mail",),
    "queue release": ("querator queue release mail --client worker-7 --dry-run",),
    "queue stats": ("querator queue stats mail", "querator queue stats mail --watch --interval 5s"),
    "console": ("querator console", "querator console --port 8080 --no-browser"),
    "queue history": ("querator queue history mail", "querator queue history mail --last 24h -o json"),
    "queue clear": ("querator queue clear mail --queue --dry-run",),
    "queue wait": ("querator queue wait mail --for empty --timeout 10m",),
    "partitions": ("querator partitions list mail",),
    "partitions list": ("querator partitions list mail", "querator partitions list -o json"),
    "partitions show": ("querator partitions show mail 0",),
    "partitions pause": ("querator partitions pause mail 0 --for 15m",),
    "partitions resume": ("querator partitions resume mail --all",),
    "partitions drain": ("querator partitions drain mail 1 --wait",),
    "partitions offline": ("querator partitions offline mail 0",),
    "partitions reload": ("querator partitions reload mail 0", "querator partitions reload --all-queues -q"),
    "partitions migrate": (
        "querator partitions migrate mail 0 --to-storage archive --wait",
        "querator partitions migrate mail 1 --to 0 --wait",
    ),
    "partitions backup": ("querator partitions backup mail --to /srv/backup/mail --wait",),
    "partitions restore": ("querator partitions restore mail --from /srv/backup/mail --wait",),
    "partitions verify": ("querator partitions verify mail --wait",),
    "partitions compact": ("querator partitions compact mail --wait",),
    "partitions jobs": ("querator partitions jobs --watch",),
    "partitions cancel": ("querator partitions cancel 0f8e7c1a",),
    "audit": ("querator audit --since 1h", "querator audit --queue 'mail*' --who deploy --follow"),
    "tokens": ("querator tokens list",),
    "tokens create": (
        "querator tokens create mailer --role producer --queue 'mail*' --expires 90d",
        "querator tokens create grafana --role viewer -o json",
    ),
    "tokens list": ("querator tokens list",),
    "tokens show": ("querator tokens show mailer",),
    "tokens revoke": ("querator tokens revoke mailer",),
    "tokens rotate": ("querator tokens rotate mailer --grace 1h",),
    "tokens whoami": ("querator tokens whoami --token-file mailer.token",),
    "archive": ("querator archive status",),
    "archive status": ("querator archive status --archive s3://backups/querator",),
    "archive list": ("querator archive list",),
    "archive verify": ("querator archive verify --archive file:///srv/archive",),
    "archive prune": ("querator archive prune --keep 48h --dry-run",),
    "archive restore": (
        'querator archive restore --at "2026-11-16 14:02" --to /srv/querator',
        'querator archive restore --at "2026-11-16 14:02" --queue mail --into mail-before',
    ),
    "archive salvage": ("querator archive salvage --data /var/lib/querator -o ndjson",),
    "storages": ("querator storages list",),
    "storages list": ("querator storages list", "querator storages list --columns storage,free_bytes"),
    "jobs": ("querator jobs list",),
    "jobs list": ("querator jobs list --watch",),
    "jobs show": ("querator jobs show 0f8e7c1a --wait",),
    "jobs cancel": ("querator jobs cancel 0f8e7c1a",),
    "items": ("querator items list mail",),
    "items list": (
        "querator items list mail --state leased",
        "querator items list mail --where \"text->>'country' = 'US'\"",
    ),
    "items inspect": ("querator items inspect mail 2wLKxMaJ0RdmLtTTIEvfy9uHvvZ",),
    "items delete": ("querator items delete mail 2wLKxMaJ0RdmLtTTIEvfy9uHvvZ --dry-run",),
    "items redrive": ("querator items redrive mail-dead --where \"kind = 'welcome'\" --dry-run",),
    "items export": ("querator items export mail --to mail.ndjson",),
    "items import": ("querator items import mail mail.ndjson",),
    "sql": (
        'querator sql mail "select kind, count(*) from items group by all"',
        "querator sql mail \"select text->>'country' as country, count(*) from items group by all\"",
    ),
    "pipeline": ("querator pipeline export mail --to /lake/mail",),
    "pipeline import": ("querator pipeline import mail letters.parquet --payload body --kind 'lower(topic)'",),
    "pipeline export": (
        "querator pipeline export mail --to /lake/mail --partition-by day",
        "querator pipeline export mail --to /lake/mail --complete",
    ),
    "pipeline copy": ("querator pipeline copy --from mail --to test/mail",),
    "pipeline redrive": (
        "querator pipeline redrive mail-dead --transform \"replace(text, 'htp:', 'http:')\" --dry-run",
    ),
    "pipeline report": ("querator pipeline report mail-dead --html report.html",),
    "pipeline stream": ("querator pipeline stream mail --to /lake/mail --trigger 1m",),
    "top": ("querator top", "querator top --once --sort ready"),
    "check": ("querator check daemon",),
    "check queue": ("querator check queue mail --depth-warn 1000 --age-critical 15m",),
    "check partitions": ("querator check partitions mail",),
    "check daemon": ("querator check daemon --timeout 5s", "querator check daemon --cert-warn 30"),
    "doctor": ("querator doctor",),
    "context": ("querator context list",),
    "context add": ("querator context add test --endpoint http://test.example:2319 --use",),
    "context use": ("querator context use test",),
    "context list": ("querator context list",),
    "context show": ("querator context show test",),
    "context remove": ("querator context remove test",),
    "tls": ("querator tls init /etc/querator/tls --name queue.example",),
    "tls init": ("querator tls init /etc/querator/tls --name queue.example --name 10.1.2.3",),
    "tls renew": ("querator tls renew /etc/querator/tls",),
    "config": ("querator config show",),
    "config show": ("querator config show -o json",),
    "version": ("querator version",),
    "completion": ("source <(querator completion bash)",),
    "help": ("querator help queue produce", "querator help exit-codes"),
}


def of(path: str) -> tuple[str, ...]:
    """The examples of a command, by the words after `querator`. `queue` and `queues` accept each other's verbs."""
    noun, _, verb = path.partition(" ")
    other = {"queue": "queues", "queues": "queue"}.get(noun, noun)
    return EXAMPLES.get(path) or EXAMPLES.get(f"{other} {verb}", ())


def write(context: Any, formatter: Any) -> None:
    """Append the examples of a command to its help."""
    found = of(" ".join(context.command_path.split()[1:]))
    if found:
        formatter.write("\nExamples:\n" if len(found) > 1 else "\nExample:\n")
        for example in found:
            formatter.write(f"  {example}\n")
