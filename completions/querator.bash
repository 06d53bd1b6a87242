# Written by packaging/generate.py from the command tree; do not edit.
# bash completion for querator

_querator_commands() {
  case "$1" in
    '') echo 'daemon queues queue partitions jobs items sql top check doctor context config version completion help' ;;
    'daemon') echo 'run status stop' ;;
    'queues') echo 'create list show update delete' ;;
    'queue') echo 'produce lease complete retry extend consume stats clear wait' ;;
    'partitions') echo 'list show pause resume drain offline reload migrate backup restore verify compact jobs cancel' ;;
    'jobs') echo 'list show cancel' ;;
    'items') echo 'list inspect delete redrive export import' ;;
    'check') echo 'queue partitions daemon' ;;
    'context') echo 'add use list show remove' ;;
    'config') echo 'show' ;;
  esac
}

_querator_options() {
  case "$1" in
    '') echo '--version --help -h' ;;
    'daemon') echo '--help -h' ;;
    'daemon run') echo '--config --data --socket --http --log-level --log-format --test-clock --debug --help -h' ;;
    'daemon status') echo '--config --data --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'daemon stop') echo '--config --data --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queues') echo '--help -h' ;;
    'queues create') echo '--partitions --lease-timeout --expire-timeout --max-attempts --dead-queue --reference --if-not-exists --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queues list') echo '--limit --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queues show') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queues update') echo '--partitions --lease-timeout --expire-timeout --max-attempts --dead-queue --reference --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queues delete') echo '--if-exists --force --yes -y --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue') echo '--help -h' ;;
    'queue produce') echo '--file -f --lines --ndjson --kind --reference --encoding --enqueue-at --delay --request-id --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue lease') echo '--batch-size -n --client-id --complete --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue complete') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue retry') echo '--at --delay --dead --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue extend') echo '--by --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue consume') echo '--exec --batch-size -n --concurrency --backoff --client-id --limit --until-empty --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue stats') echo '--watch -w --interval --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue clear') echo '--queue --scheduled --destructive --yes -y --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'queue wait') echo '--for --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions') echo '--help -h' ;;
    'partitions list') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions show') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions pause') echo '--all --wait --for --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions resume') echo '--all --wait --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions drain') echo '--all --wait --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions offline') echo '--all --wait --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions reload') echo '--all --all-queues --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions migrate') echo '--to --to-storage --wait --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions backup') echo '--to --wait --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions restore') echo '--from --wait --yes -y --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions verify') echo '--wait --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions compact') echo '--wait --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions jobs') echo '--watch -w --interval --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'partitions cancel') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'jobs') echo '--help -h' ;;
    'jobs list') echo '--watch -w --interval --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'jobs show') echo '--wait --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'jobs cancel') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items') echo '--help -h' ;;
    'items list') echo '--partition -p --state --kind --where --limit --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items inspect') echo '--raw --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items delete') echo '--yes -y --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items redrive') echo '--to --where --limit --rate --dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items export') echo '--to --partition -p --where --limit --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'items import') echo '--dry-run --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'sql') echo '--limit --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'top') echo '--once --interval --sort --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'check') echo '--help -h' ;;
    'check queue') echo '--depth-warn --depth-critical --age-warn --age-critical --format --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'check partitions') echo '--format --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'check daemon') echo '--format --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'doctor') echo '--data --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'context') echo '--help -h' ;;
    'context add') echo '--endpoint --socket --token-file --use --replace --output -o --quiet -q --columns --context --timeout --debug --help -h' ;;
    'context use') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'context list') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'context show') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'context remove') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'config') echo '--help -h' ;;
    'config show') echo '--config --output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'version') echo '--output -o --quiet -q --columns --endpoint --socket --context --token-file --timeout --debug --help -h' ;;
    'completion') echo '--help -h' ;;
    'help') echo '--help -h' ;;
  esac
}

_querator_value() {
  case "$1 $2" in
    'daemon run --config') echo 'files' ;;
    'daemon run --data') echo 'directories' ;;
    'daemon run --socket') echo 'files' ;;
    'daemon run --http') echo 'none' ;;
    'daemon run --log-level') echo 'none' ;;
    'daemon run --log-format') echo 'none' ;;
    'daemon status --config') echo 'files' ;;
    'daemon status --data') echo 'directories' ;;
    'daemon status --output') echo '=table json ndjson name' ;;
    'daemon status -o') echo '=table json ndjson name' ;;
    'daemon status --columns') echo 'none' ;;
    'daemon status --endpoint') echo 'none' ;;
    'daemon status --socket') echo 'files' ;;
    'daemon status --context') echo 'contexts' ;;
    'daemon status --token-file') echo 'files' ;;
    'daemon status --timeout') echo 'none' ;;
    'daemon stop --config') echo 'files' ;;
    'daemon stop --data') echo 'directories' ;;
    'daemon stop --output') echo '=table json ndjson name' ;;
    'daemon stop -o') echo '=table json ndjson name' ;;
    'daemon stop --columns') echo 'none' ;;
    'daemon stop --endpoint') echo 'none' ;;
    'daemon stop --socket') echo 'files' ;;
    'daemon stop --context') echo 'contexts' ;;
    'daemon stop --token-file') echo 'files' ;;
    'daemon stop --timeout') echo 'none' ;;
    'queues create --partitions') echo 'none' ;;
    'queues create --lease-timeout') echo 'none' ;;
    'queues create --expire-timeout') echo 'none' ;;
    'queues create --max-attempts') echo 'none' ;;
    'queues create --dead-queue') echo 'queues' ;;
    'queues create --reference') echo 'none' ;;
    'queues create --output') echo '=table json ndjson name' ;;
    'queues create -o') echo '=table json ndjson name' ;;
    'queues create --columns') echo 'none' ;;
    'queues create --endpoint') echo 'none' ;;
    'queues create --socket') echo 'files' ;;
    'queues create --context') echo 'contexts' ;;
    'queues create --token-file') echo 'files' ;;
    'queues create --timeout') echo 'none' ;;
    'queues list --limit') echo 'none' ;;
    'queues list --output') echo '=table json ndjson name' ;;
    'queues list -o') echo '=table json ndjson name' ;;
    'queues list --columns') echo 'none' ;;
    'queues list --endpoint') echo 'none' ;;
    'queues list --socket') echo 'files' ;;
    'queues list --context') echo 'contexts' ;;
    'queues list --token-file') echo 'files' ;;
    'queues list --timeout') echo 'none' ;;
    'queues show --output') echo '=table json ndjson name' ;;
    'queues show -o') echo '=table json ndjson name' ;;
    'queues show --columns') echo 'none' ;;
    'queues show --endpoint') echo 'none' ;;
    'queues show --socket') echo 'files' ;;
    'queues show --context') echo 'contexts' ;;
    'queues show --token-file') echo 'files' ;;
    'queues show --timeout') echo 'none' ;;
    'queues update --partitions') echo 'none' ;;
    'queues update --lease-timeout') echo 'none' ;;
    'queues update --expire-timeout') echo 'none' ;;
    'queues update --max-attempts') echo 'none' ;;
    'queues update --dead-queue') echo 'queues' ;;
    'queues update --reference') echo 'none' ;;
    'queues update --output') echo '=table json ndjson name' ;;
    'queues update -o') echo '=table json ndjson name' ;;
    'queues update --columns') echo 'none' ;;
    'queues update --endpoint') echo 'none' ;;
    'queues update --socket') echo 'files' ;;
    'queues update --context') echo 'contexts' ;;
    'queues update --token-file') echo 'files' ;;
    'queues update --timeout') echo 'none' ;;
    'queues delete --output') echo '=table json ndjson name' ;;
    'queues delete -o') echo '=table json ndjson name' ;;
    'queues delete --columns') echo 'none' ;;
    'queues delete --endpoint') echo 'none' ;;
    'queues delete --socket') echo 'files' ;;
    'queues delete --context') echo 'contexts' ;;
    'queues delete --token-file') echo 'files' ;;
    'queues delete --timeout') echo 'none' ;;
    'queue produce --file') echo 'files' ;;
    'queue produce -f') echo 'files' ;;
    'queue produce --kind') echo 'none' ;;
    'queue produce --reference') echo 'none' ;;
    'queue produce --encoding') echo 'none' ;;
    'queue produce --enqueue-at') echo 'none' ;;
    'queue produce --delay') echo 'none' ;;
    'queue produce --request-id') echo 'none' ;;
    'queue produce --output') echo '=table json ndjson name' ;;
    'queue produce -o') echo '=table json ndjson name' ;;
    'queue produce --columns') echo 'none' ;;
    'queue produce --endpoint') echo 'none' ;;
    'queue produce --socket') echo 'files' ;;
    'queue produce --context') echo 'contexts' ;;
    'queue produce --token-file') echo 'files' ;;
    'queue produce --timeout') echo 'none' ;;
    'queue lease --batch-size') echo 'none' ;;
    'queue lease -n') echo 'none' ;;
    'queue lease --client-id') echo 'none' ;;
    'queue lease --complete') echo 'ids' ;;
    'queue lease --output') echo '=table json ndjson name' ;;
    'queue lease -o') echo '=table json ndjson name' ;;
    'queue lease --columns') echo 'none' ;;
    'queue lease --endpoint') echo 'none' ;;
    'queue lease --socket') echo 'files' ;;
    'queue lease --context') echo 'contexts' ;;
    'queue lease --token-file') echo 'files' ;;
    'queue lease --timeout') echo 'none' ;;
    'queue complete --output') echo '=table json ndjson name' ;;
    'queue complete -o') echo '=table json ndjson name' ;;
    'queue complete --columns') echo 'none' ;;
    'queue complete --endpoint') echo 'none' ;;
    'queue complete --socket') echo 'files' ;;
    'queue complete --context') echo 'contexts' ;;
    'queue complete --token-file') echo 'files' ;;
    'queue complete --timeout') echo 'none' ;;
    'queue retry --at') echo 'none' ;;
    'queue retry --delay') echo 'none' ;;
    'queue retry --output') echo '=table json ndjson name' ;;
    'queue retry -o') echo '=table json ndjson name' ;;
    'queue retry --columns') echo 'none' ;;
    'queue retry --endpoint') echo 'none' ;;
    'queue retry --socket') echo 'files' ;;
    'queue retry --context') echo 'contexts' ;;
    'queue retry --token-file') echo 'files' ;;
    'queue retry --timeout') echo 'none' ;;
    'queue extend --by') echo 'none' ;;
    'queue extend --output') echo '=table json ndjson name' ;;
    'queue extend -o') echo '=table json ndjson name' ;;
    'queue extend --columns') echo 'none' ;;
    'queue extend --endpoint') echo 'none' ;;
    'queue extend --socket') echo 'files' ;;
    'queue extend --context') echo 'contexts' ;;
    'queue extend --token-file') echo 'files' ;;
    'queue extend --timeout') echo 'none' ;;
    'queue consume --exec') echo 'none' ;;
    'queue consume --batch-size') echo 'none' ;;
    'queue consume -n') echo 'none' ;;
    'queue consume --concurrency') echo 'none' ;;
    'queue consume --backoff') echo 'none' ;;
    'queue consume --client-id') echo 'none' ;;
    'queue consume --limit') echo 'none' ;;
    'queue consume --output') echo '=table json ndjson name' ;;
    'queue consume -o') echo '=table json ndjson name' ;;
    'queue consume --columns') echo 'none' ;;
    'queue consume --endpoint') echo 'none' ;;
    'queue consume --socket') echo 'files' ;;
    'queue consume --context') echo 'contexts' ;;
    'queue consume --token-file') echo 'files' ;;
    'queue consume --timeout') echo 'none' ;;
    'queue stats --interval') echo 'none' ;;
    'queue stats --output') echo '=table json ndjson name' ;;
    'queue stats -o') echo '=table json ndjson name' ;;
    'queue stats --columns') echo 'none' ;;
    'queue stats --endpoint') echo 'none' ;;
    'queue stats --socket') echo 'files' ;;
    'queue stats --context') echo 'contexts' ;;
    'queue stats --token-file') echo 'files' ;;
    'queue stats --timeout') echo 'none' ;;
    'queue clear --output') echo '=table json ndjson name' ;;
    'queue clear -o') echo '=table json ndjson name' ;;
    'queue clear --columns') echo 'none' ;;
    'queue clear --endpoint') echo 'none' ;;
    'queue clear --socket') echo 'files' ;;
    'queue clear --context') echo 'contexts' ;;
    'queue clear --token-file') echo 'files' ;;
    'queue clear --timeout') echo 'none' ;;
    'queue wait --for') echo '=empty idle' ;;
    'queue wait --output') echo '=table json ndjson name' ;;
    'queue wait -o') echo '=table json ndjson name' ;;
    'queue wait --columns') echo 'none' ;;
    'queue wait --endpoint') echo 'none' ;;
    'queue wait --socket') echo 'files' ;;
    'queue wait --context') echo 'contexts' ;;
    'queue wait --token-file') echo 'files' ;;
    'queue wait --timeout') echo 'none' ;;
    'partitions list --output') echo '=table json ndjson name' ;;
    'partitions list -o') echo '=table json ndjson name' ;;
    'partitions list --columns') echo 'none' ;;
    'partitions list --endpoint') echo 'none' ;;
    'partitions list --socket') echo 'files' ;;
    'partitions list --context') echo 'contexts' ;;
    'partitions list --token-file') echo 'files' ;;
    'partitions list --timeout') echo 'none' ;;
    'partitions show --output') echo '=table json ndjson name' ;;
    'partitions show -o') echo '=table json ndjson name' ;;
    'partitions show --columns') echo 'none' ;;
    'partitions show --endpoint') echo 'none' ;;
    'partitions show --socket') echo 'files' ;;
    'partitions show --context') echo 'contexts' ;;
    'partitions show --token-file') echo 'files' ;;
    'partitions show --timeout') echo 'none' ;;
    'partitions pause --for') echo 'none' ;;
    'partitions pause --output') echo '=table json ndjson name' ;;
    'partitions pause -o') echo '=table json ndjson name' ;;
    'partitions pause --columns') echo 'none' ;;
    'partitions pause --endpoint') echo 'none' ;;
    'partitions pause --socket') echo 'files' ;;
    'partitions pause --context') echo 'contexts' ;;
    'partitions pause --token-file') echo 'files' ;;
    'partitions pause --timeout') echo 'none' ;;
    'partitions resume --output') echo '=table json ndjson name' ;;
    'partitions resume -o') echo '=table json ndjson name' ;;
    'partitions resume --columns') echo 'none' ;;
    'partitions resume --endpoint') echo 'none' ;;
    'partitions resume --socket') echo 'files' ;;
    'partitions resume --context') echo 'contexts' ;;
    'partitions resume --token-file') echo 'files' ;;
    'partitions resume --timeout') echo 'none' ;;
    'partitions drain --output') echo '=table json ndjson name' ;;
    'partitions drain -o') echo '=table json ndjson name' ;;
    'partitions drain --columns') echo 'none' ;;
    'partitions drain --endpoint') echo 'none' ;;
    'partitions drain --socket') echo 'files' ;;
    'partitions drain --context') echo 'contexts' ;;
    'partitions drain --token-file') echo 'files' ;;
    'partitions drain --timeout') echo 'none' ;;
    'partitions offline --output') echo '=table json ndjson name' ;;
    'partitions offline -o') echo '=table json ndjson name' ;;
    'partitions offline --columns') echo 'none' ;;
    'partitions offline --endpoint') echo 'none' ;;
    'partitions offline --socket') echo 'files' ;;
    'partitions offline --context') echo 'contexts' ;;
    'partitions offline --token-file') echo 'files' ;;
    'partitions offline --timeout') echo 'none' ;;
    'partitions reload --output') echo '=table json ndjson name' ;;
    'partitions reload -o') echo '=table json ndjson name' ;;
    'partitions reload --columns') echo 'none' ;;
    'partitions reload --endpoint') echo 'none' ;;
    'partitions reload --socket') echo 'files' ;;
    'partitions reload --context') echo 'contexts' ;;
    'partitions reload --token-file') echo 'files' ;;
    'partitions reload --timeout') echo 'none' ;;
    'partitions migrate --to') echo 'partitions' ;;
    'partitions migrate --to-storage') echo 'storages' ;;
    'partitions migrate --output') echo '=table json ndjson name' ;;
    'partitions migrate -o') echo '=table json ndjson name' ;;
    'partitions migrate --columns') echo 'none' ;;
    'partitions migrate --endpoint') echo 'none' ;;
    'partitions migrate --socket') echo 'files' ;;
    'partitions migrate --context') echo 'contexts' ;;
    'partitions migrate --token-file') echo 'files' ;;
    'partitions migrate --timeout') echo 'none' ;;
    'partitions backup --to') echo 'directories' ;;
    'partitions backup --output') echo '=table json ndjson name' ;;
    'partitions backup -o') echo '=table json ndjson name' ;;
    'partitions backup --columns') echo 'none' ;;
    'partitions backup --endpoint') echo 'none' ;;
    'partitions backup --socket') echo 'files' ;;
    'partitions backup --context') echo 'contexts' ;;
    'partitions backup --token-file') echo 'files' ;;
    'partitions backup --timeout') echo 'none' ;;
    'partitions restore --from') echo 'directories' ;;
    'partitions restore --output') echo '=table json ndjson name' ;;
    'partitions restore -o') echo '=table json ndjson name' ;;
    'partitions restore --columns') echo 'none' ;;
    'partitions restore --endpoint') echo 'none' ;;
    'partitions restore --socket') echo 'files' ;;
    'partitions restore --context') echo 'contexts' ;;
    'partitions restore --token-file') echo 'files' ;;
    'partitions restore --timeout') echo 'none' ;;
    'partitions verify --output') echo '=table json ndjson name' ;;
    'partitions verify -o') echo '=table json ndjson name' ;;
    'partitions verify --columns') echo 'none' ;;
    'partitions verify --endpoint') echo 'none' ;;
    'partitions verify --socket') echo 'files' ;;
    'partitions verify --context') echo 'contexts' ;;
    'partitions verify --token-file') echo 'files' ;;
    'partitions verify --timeout') echo 'none' ;;
    'partitions compact --output') echo '=table json ndjson name' ;;
    'partitions compact -o') echo '=table json ndjson name' ;;
    'partitions compact --columns') echo 'none' ;;
    'partitions compact --endpoint') echo 'none' ;;
    'partitions compact --socket') echo 'files' ;;
    'partitions compact --context') echo 'contexts' ;;
    'partitions compact --token-file') echo 'files' ;;
    'partitions compact --timeout') echo 'none' ;;
    'partitions jobs --interval') echo 'none' ;;
    'partitions jobs --output') echo '=table json ndjson name' ;;
    'partitions jobs -o') echo '=table json ndjson name' ;;
    'partitions jobs --columns') echo 'none' ;;
    'partitions jobs --endpoint') echo 'none' ;;
    'partitions jobs --socket') echo 'files' ;;
    'partitions jobs --context') echo 'contexts' ;;
    'partitions jobs --token-file') echo 'files' ;;
    'partitions jobs --timeout') echo 'none' ;;
    'partitions cancel --output') echo '=table json ndjson name' ;;
    'partitions cancel -o') echo '=table json ndjson name' ;;
    'partitions cancel --columns') echo 'none' ;;
    'partitions cancel --endpoint') echo 'none' ;;
    'partitions cancel --socket') echo 'files' ;;
    'partitions cancel --context') echo 'contexts' ;;
    'partitions cancel --token-file') echo 'files' ;;
    'partitions cancel --timeout') echo 'none' ;;
    'jobs list --interval') echo 'none' ;;
    'jobs list --output') echo '=table json ndjson name' ;;
    'jobs list -o') echo '=table json ndjson name' ;;
    'jobs list --columns') echo 'none' ;;
    'jobs list --endpoint') echo 'none' ;;
    'jobs list --socket') echo 'files' ;;
    'jobs list --context') echo 'contexts' ;;
    'jobs list --token-file') echo 'files' ;;
    'jobs list --timeout') echo 'none' ;;
    'jobs show --output') echo '=table json ndjson name' ;;
    'jobs show -o') echo '=table json ndjson name' ;;
    'jobs show --columns') echo 'none' ;;
    'jobs show --endpoint') echo 'none' ;;
    'jobs show --socket') echo 'files' ;;
    'jobs show --context') echo 'contexts' ;;
    'jobs show --token-file') echo 'files' ;;
    'jobs show --timeout') echo 'none' ;;
    'jobs cancel --output') echo '=table json ndjson name' ;;
    'jobs cancel -o') echo '=table json ndjson name' ;;
    'jobs cancel --columns') echo 'none' ;;
    'jobs cancel --endpoint') echo 'none' ;;
    'jobs cancel --socket') echo 'files' ;;
    'jobs cancel --context') echo 'contexts' ;;
    'jobs cancel --token-file') echo 'files' ;;
    'jobs cancel --timeout') echo 'none' ;;
    'items list --partition') echo 'partitions' ;;
    'items list -p') echo 'partitions' ;;
    'items list --state') echo '=ready leased scheduled all' ;;
    'items list --kind') echo 'none' ;;
    'items list --where') echo 'none' ;;
    'items list --limit') echo 'none' ;;
    'items list --output') echo '=table json ndjson name' ;;
    'items list -o') echo '=table json ndjson name' ;;
    'items list --columns') echo 'none' ;;
    'items list --endpoint') echo 'none' ;;
    'items list --socket') echo 'files' ;;
    'items list --context') echo 'contexts' ;;
    'items list --token-file') echo 'files' ;;
    'items list --timeout') echo 'none' ;;
    'items inspect --output') echo '=table json ndjson name' ;;
    'items inspect -o') echo '=table json ndjson name' ;;
    'items inspect --columns') echo 'none' ;;
    'items inspect --endpoint') echo 'none' ;;
    'items inspect --socket') echo 'files' ;;
    'items inspect --context') echo 'contexts' ;;
    'items inspect --token-file') echo 'files' ;;
    'items inspect --timeout') echo 'none' ;;
    'items delete --output') echo '=table json ndjson name' ;;
    'items delete -o') echo '=table json ndjson name' ;;
    'items delete --columns') echo 'none' ;;
    'items delete --endpoint') echo 'none' ;;
    'items delete --socket') echo 'files' ;;
    'items delete --context') echo 'contexts' ;;
    'items delete --token-file') echo 'files' ;;
    'items delete --timeout') echo 'none' ;;
    'items redrive --to') echo 'queues' ;;
    'items redrive --where') echo 'none' ;;
    'items redrive --limit') echo 'none' ;;
    'items redrive --rate') echo 'none' ;;
    'items redrive --output') echo '=table json ndjson name' ;;
    'items redrive -o') echo '=table json ndjson name' ;;
    'items redrive --columns') echo 'none' ;;
    'items redrive --endpoint') echo 'none' ;;
    'items redrive --socket') echo 'files' ;;
    'items redrive --context') echo 'contexts' ;;
    'items redrive --token-file') echo 'files' ;;
    'items redrive --timeout') echo 'none' ;;
    'items export --to') echo 'files' ;;
    'items export --partition') echo 'partitions' ;;
    'items export -p') echo 'partitions' ;;
    'items export --where') echo 'none' ;;
    'items export --limit') echo 'none' ;;
    'items export --output') echo '=table json ndjson name' ;;
    'items export -o') echo '=table json ndjson name' ;;
    'items export --columns') echo 'none' ;;
    'items export --endpoint') echo 'none' ;;
    'items export --socket') echo 'files' ;;
    'items export --context') echo 'contexts' ;;
    'items export --token-file') echo 'files' ;;
    'items export --timeout') echo 'none' ;;
    'items import --output') echo '=table json ndjson name' ;;
    'items import -o') echo '=table json ndjson name' ;;
    'items import --columns') echo 'none' ;;
    'items import --endpoint') echo 'none' ;;
    'items import --socket') echo 'files' ;;
    'items import --context') echo 'contexts' ;;
    'items import --token-file') echo 'files' ;;
    'items import --timeout') echo 'none' ;;
    'sql --limit') echo 'none' ;;
    'sql --output') echo '=table json ndjson name csv arrow' ;;
    'sql -o') echo '=table json ndjson name csv arrow' ;;
    'sql --columns') echo 'none' ;;
    'sql --endpoint') echo 'none' ;;
    'sql --socket') echo 'files' ;;
    'sql --context') echo 'contexts' ;;
    'sql --token-file') echo 'files' ;;
    'sql --timeout') echo 'none' ;;
    'top --interval') echo 'none' ;;
    'top --sort') echo '=name ready leased scheduled rate_in rate_out oldest_seconds' ;;
    'top --output') echo '=table json ndjson name' ;;
    'top -o') echo '=table json ndjson name' ;;
    'top --columns') echo 'none' ;;
    'top --endpoint') echo 'none' ;;
    'top --socket') echo 'files' ;;
    'top --context') echo 'contexts' ;;
    'top --token-file') echo 'files' ;;
    'top --timeout') echo 'none' ;;
    'check queue --depth-warn') echo 'none' ;;
    'check queue --depth-critical') echo 'none' ;;
    'check queue --age-warn') echo 'none' ;;
    'check queue --age-critical') echo 'none' ;;
    'check queue --format') echo '=nagios prometheus json' ;;
    'check queue --output') echo '=table json ndjson name' ;;
    'check queue -o') echo '=table json ndjson name' ;;
    'check queue --columns') echo 'none' ;;
    'check queue --endpoint') echo 'none' ;;
    'check queue --socket') echo 'files' ;;
    'check queue --context') echo 'contexts' ;;
    'check queue --token-file') echo 'files' ;;
    'check queue --timeout') echo 'none' ;;
    'check partitions --format') echo '=nagios prometheus json' ;;
    'check partitions --output') echo '=table json ndjson name' ;;
    'check partitions -o') echo '=table json ndjson name' ;;
    'check partitions --columns') echo 'none' ;;
    'check partitions --endpoint') echo 'none' ;;
    'check partitions --socket') echo 'files' ;;
    'check partitions --context') echo 'contexts' ;;
    'check partitions --token-file') echo 'files' ;;
    'check partitions --timeout') echo 'none' ;;
    'check daemon --format') echo '=nagios prometheus json' ;;
    'check daemon --output') echo '=table json ndjson name' ;;
    'check daemon -o') echo '=table json ndjson name' ;;
    'check daemon --columns') echo 'none' ;;
    'check daemon --endpoint') echo 'none' ;;
    'check daemon --socket') echo 'files' ;;
    'check daemon --context') echo 'contexts' ;;
    'check daemon --token-file') echo 'files' ;;
    'check daemon --timeout') echo 'none' ;;
    'doctor --data') echo 'directories' ;;
    'doctor --output') echo '=table json ndjson name' ;;
    'doctor -o') echo '=table json ndjson name' ;;
    'doctor --columns') echo 'none' ;;
    'doctor --endpoint') echo 'none' ;;
    'doctor --socket') echo 'files' ;;
    'doctor --context') echo 'contexts' ;;
    'doctor --token-file') echo 'files' ;;
    'doctor --timeout') echo 'none' ;;
    'context add --endpoint') echo 'none' ;;
    'context add --socket') echo 'files' ;;
    'context add --token-file') echo 'files' ;;
    'context add --output') echo '=table json ndjson name' ;;
    'context add -o') echo '=table json ndjson name' ;;
    'context add --columns') echo 'none' ;;
    'context add --context') echo 'contexts' ;;
    'context add --timeout') echo 'none' ;;
    'context use --output') echo '=table json ndjson name' ;;
    'context use -o') echo '=table json ndjson name' ;;
    'context use --columns') echo 'none' ;;
    'context use --endpoint') echo 'none' ;;
    'context use --socket') echo 'files' ;;
    'context use --context') echo 'contexts' ;;
    'context use --token-file') echo 'files' ;;
    'context use --timeout') echo 'none' ;;
    'context list --output') echo '=table json ndjson name' ;;
    'context list -o') echo '=table json ndjson name' ;;
    'context list --columns') echo 'none' ;;
    'context list --endpoint') echo 'none' ;;
    'context list --socket') echo 'files' ;;
    'context list --context') echo 'contexts' ;;
    'context list --token-file') echo 'files' ;;
    'context list --timeout') echo 'none' ;;
    'context show --output') echo '=table json ndjson name' ;;
    'context show -o') echo '=table json ndjson name' ;;
    'context show --columns') echo 'none' ;;
    'context show --endpoint') echo 'none' ;;
    'context show --socket') echo 'files' ;;
    'context show --context') echo 'contexts' ;;
    'context show --token-file') echo 'files' ;;
    'context show --timeout') echo 'none' ;;
    'context remove --output') echo '=table json ndjson name' ;;
    'context remove -o') echo '=table json ndjson name' ;;
    'context remove --columns') echo 'none' ;;
    'context remove --endpoint') echo 'none' ;;
    'context remove --socket') echo 'files' ;;
    'context remove --context') echo 'contexts' ;;
    'context remove --token-file') echo 'files' ;;
    'context remove --timeout') echo 'none' ;;
    'config show --config') echo 'files' ;;
    'config show --output') echo '=table json ndjson name' ;;
    'config show -o') echo '=table json ndjson name' ;;
    'config show --columns') echo 'none' ;;
    'config show --endpoint') echo 'none' ;;
    'config show --socket') echo 'files' ;;
    'config show --context') echo 'contexts' ;;
    'config show --token-file') echo 'files' ;;
    'config show --timeout') echo 'none' ;;
    'version --output') echo '=table json ndjson name' ;;
    'version -o') echo '=table json ndjson name' ;;
    'version --columns') echo 'none' ;;
    'version --endpoint') echo 'none' ;;
    'version --socket') echo 'files' ;;
    'version --context') echo 'contexts' ;;
    'version --token-file') echo 'files' ;;
    'version --timeout') echo 'none' ;;
  esac
}

_querator_argument() {
  case "$1 $2" in
    'queues show 0') echo 'queues' ;;
    'queues update 0') echo 'queues' ;;
    'queues delete 0') echo 'queues' ;;
    'queue produce 0') echo 'queues' ;;
    'queue lease 0') echo 'queues' ;;
    'queue complete 0') echo 'queues' ;;
    'queue complete '*) echo 'ids' ;;
    'queue retry 0') echo 'queues' ;;
    'queue retry '*) echo 'ids' ;;
    'queue extend 0') echo 'queues' ;;
    'queue extend '*) echo 'ids' ;;
    'queue consume 0') echo 'queues' ;;
    'queue stats 0') echo 'queues' ;;
    'queue clear 0') echo 'queues' ;;
    'queue wait 0') echo 'queues' ;;
    'partitions list 0') echo 'queues' ;;
    'partitions show 0') echo 'queues' ;;
    'partitions show 1') echo 'partitions' ;;
    'partitions pause 0') echo 'queues' ;;
    'partitions pause '*) echo 'partitions' ;;
    'partitions resume 0') echo 'queues' ;;
    'partitions resume '*) echo 'partitions' ;;
    'partitions drain 0') echo 'queues' ;;
    'partitions drain '*) echo 'partitions' ;;
    'partitions offline 0') echo 'queues' ;;
    'partitions offline '*) echo 'partitions' ;;
    'partitions reload 0') echo 'queues' ;;
    'partitions reload '*) echo 'partitions' ;;
    'partitions migrate 0') echo 'queues' ;;
    'partitions migrate 1') echo 'partitions' ;;
    'partitions backup 0') echo 'queues' ;;
    'partitions backup '*) echo 'partitions' ;;
    'partitions restore 0') echo 'queues' ;;
    'partitions restore '*) echo 'partitions' ;;
    'partitions verify 0') echo 'queues' ;;
    'partitions verify '*) echo 'partitions' ;;
    'partitions compact 0') echo 'queues' ;;
    'partitions compact '*) echo 'partitions' ;;
    'partitions cancel 0') echo 'jobs' ;;
    'jobs show 0') echo 'jobs' ;;
    'jobs cancel 0') echo 'jobs' ;;
    'items list 0') echo 'queues' ;;
    'items inspect 0') echo 'queues' ;;
    'items inspect 1') echo 'ids' ;;
    'items delete 0') echo 'queues' ;;
    'items delete '*) echo 'ids' ;;
    'items redrive 0') echo 'queues' ;;
    'items export 0') echo 'queues' ;;
    'items import 0') echo 'queues' ;;
    'items import 1') echo 'files' ;;
    'sql 0') echo 'queues' ;;
    'check queue 0') echo 'queues' ;;
    'check partitions 0') echo 'queues' ;;
    'context use 0') echo 'contexts' ;;
    'context show 0') echo 'contexts' ;;
    'context remove 0') echo 'contexts' ;;
    'completion 0') echo '=bash zsh fish' ;;
  esac
}

_querator() {
  local line="${COMP_LINE:0:COMP_POINT}" words cur path="" word kind index=0 skip="" known i
  # Not COMP_WORDS: readline breaks words at : and =, and a queue's name may have both.
  read -ra words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  cur="${words[${#words[@]}-1]}"
  COMPREPLY=()
  for ((i = 1; i < ${#words[@]} - 1; i++)); do
    word="${words[i]}"
    if [[ -n $skip ]]; then
      skip=""
    elif [[ $word == -* ]]; then
      [[ $word != *=* && -n $(_querator_value "$path" "$word") ]] && skip="$word"
    else
      known=" $(_querator_commands "$path") "
      if [[ $known == *" $word "* ]]; then
        path="${path:+$path }$word"
        index=0
      else
        index=$((index + 1))
      fi
    fi
  done
  local prefix="$cur"
  if [[ -n $skip ]]; then
    kind=$(_querator_value "$path" "$skip")
  elif [[ $cur == --*=* ]]; then
    kind=$(_querator_value "$path" "${cur%%=*}")
    prefix="${cur#*=}"
    words[${#words[@]}-1]="$prefix"
  elif [[ $cur == -* ]]; then
    kind="=$(_querator_options "$path")"
  else
    kind="=$(_querator_commands "$path")"
    [[ $kind == "=" ]] && kind=$(_querator_argument "$path" "$index")
  fi
  local IFS=$'\n'
  case "$kind" in
    "" | none) ;;
    =*) COMPREPLY=($(compgen -W "${kind//[ =]/$'\n'}" -- "$prefix")) ;;
    files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$prefix")) ;;
    directories) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- "$prefix")) ;;
    *) COMPREPLY=($(querator __complete "$kind" "${words[@]}" 2>/dev/null)) ;;
  esac
  # What readline takes for the word begins after the last : of it; give back only that.
  if [[ $prefix == *:* && $COMP_WORDBREAKS == *:* ]]; then
    local before="${prefix%"${prefix##*:}"}"
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
  fi
}

complete -F _querator querator
