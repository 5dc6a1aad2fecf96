#!/usr/bin/env bash
# Starts what watches a server: by docker compose where Docker is, else from the programs on this machine that are installed
# (prometheus; otelcol in the PATH or from `make collector`; grafana-server). Ends them all with Ctrl-C.
#   deploy/observability/start.sh [--programs]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"

if [[ "${1:-}" != --programs ]] && docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
  exec docker compose -f compose.yaml up
fi

state=${KEYGLANCE_OBSERVABILITY_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/keyglance-observability}
mkdir -p "$state/prometheus" "$state/grafana"
started=()
trap 'trap - EXIT INT TERM; ((${#started[@]})) && kill "${started[@]}" 2>/dev/null; wait' EXIT INT TERM

start() {
  local name=$1
  shift
  "$@" >"$state/$name.log" 2>&1 &
  started+=($!)
  echo "$name: process $!, log in $state/$name.log"
}

if ! command -v prometheus >/dev/null; then
  echo "error: neither Docker nor Prometheus is here (Debian: apt-get install prometheus)" >&2
  exit 1
fi
start prometheus prometheus --config.file=prometheus.yml --storage.tsdb.path="$state/prometheus" \
  --web.listen-address="${PROMETHEUS_LISTEN:-127.0.0.1:9090}" --enable-feature=exemplar-storage

otelcol=$(command -v otelcol || true)
[[ -n $otelcol ]] || { [[ -x ../../.tools/otelcol/otelcol ]] && otelcol=../../.tools/otelcol/otelcol; } || true
if [[ -n $otelcol ]]; then
  start collector "$otelcol" --config=collector.yaml
else
  echo "collector: not here (make collector builds one); servers can still be read by Prometheus"
fi

if command -v grafana-server >/dev/null; then
  start grafana env KEYGLANCE_DASHBOARDS="$here/grafana/dashboards" GF_SERVER_HTTP_ADDR=127.0.0.1 GF_PATHS_DATA="$state/grafana" \
    GF_PATHS_PROVISIONING="$here/grafana/provisioning" GF_AUTH_ANONYMOUS_ENABLED=true GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer \
    grafana-server --homepath="${GRAFANA_HOME:-/usr/share/grafana}"
else
  echo "grafana: not here; grafana/dashboards/keyglance.json can be imported into any"
fi

wait -n "${started[@]}"
echo "error: one of them has ended; the logs in $state say why" >&2
exit 1
