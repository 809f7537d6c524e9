#!/bin/sh
# monitoring.sh SUPERVISOR...: Prometheus, Alertmanager and Grafana beside a cluster, until Ctrl-C. Each SUPERVISOR is HOST:PORT
# as in `supervisor run --metrics-address HOST --metrics-port PORT`: all of them, the ones that stand by too.
#   FOLDER     configuration and data (./monitoring)
#   ALERTS     URL of a webhook that is told of alerts; without it they are only shown
#   TICKETS    the same, for those that wait for the morning (severity="ticket"); without it ALERTS is told of them too
#   RUNBOOKS   URL of docs/runbooks as a telephone reaches it, as https://git.example/REPOSITORY/blob/main/docs/runbooks: each alert then has
#              its page as annotation runbook_url; without it only the path in this repository, as annotation runbook
#   HEARTBEAT  URL of whoever calls a person when it hears nothing from here for minutes (the dead-man's switch)
#   SECURITY   security file with the certificate of `reader` (docs/SECURITY.md), where the supervisors use TLS
#   LISTEN     address that all three listen on (127.0.0.1: they ask nobody who he is)
#   PROMETHEUS_PORT, ALERTMANAGER_PORT, GRAFANA_PORT  9090, 9093, 3000
set -eu
[ $# -ge 1 ] || { echo "usage: monitoring.sh HOST:PORT... (of each supervisor)" >&2; exit 2; }
for supervisor in "$@"; do
    case "$supervisor" in
        *[!A-Za-z0-9.:\[\]_-]* | *: | :* | [!\[]*:*:*) echo "monitoring.sh: $supervisor is no HOST:PORT" >&2; exit 2 ;;
        *:*) ;;
        *) echo "monitoring.sh: $supervisor is no HOST:PORT" >&2; exit 2 ;;
    esac
done
here=$(cd "$(dirname "$0")" && pwd)
dashboards=$(cd "$here/../dashboards" && pwd)
mkdir -p "${FOLDER:=monitoring}"
FOLDER=$(cd "$FOLDER" && pwd)
[ "$FOLDER" != "$here/monitoring" ] || { echo "monitoring.sh: $FOLDER holds its templates: give another FOLDER" >&2; exit 2; }
listen=${LISTEN:-127.0.0.1}
prometheus=$listen:${PROMETHEUS_PORT:-9090}
alertmanager=$listen:${ALERTMANAGER_PORT:-9093}

# What a security file names, as a path: `key = "file"`, relative to the security file.
named() {
    file=$(sed -n "s/^ *$1 *= *\"\(.*\)\" *\(#.*\)\{0,1\}\$/\1/p" "$SECURITY")
    [ -n "$file" ] || { echo "monitoring.sh: $SECURITY names no $1" >&2; exit 2; }
    case "$file" in /*) echo "$file" ;; *) echo "$(cd "$(dirname "$SECURITY")" && pwd)/$file" ;; esac
}
scheme=http ca= cert= key=
if [ -n "${SECURITY:-}" ]; then
    [ -r "$SECURITY" ] || { echo "monitoring.sh: $SECURITY cannot be read" >&2; exit 2; }
    scheme=https ca=$(named ca) cert=$(named cert) key=$(named key)
fi

rules=$dashboards/rules.yml
if [ -n "${RUNBOOKS:-}" ]; then
    rules=$FOLDER/rules.yml
    awk -v base="${RUNBOOKS%/}" '{ print }
        at = index($0, path = "runbook: docs/runbooks/") {
            print substr($0, 1, at - 1) "runbook_url: \"" base "/" substr($0, at + length(path)) "\""
        }' <"$dashboards/rules.yml" >"$rules"
fi

# A line of a part that is used loses its mark; a line with SUPERVISOR comes once for each.
fill() {
    awk -v supervisors="$*" -v scheme="$scheme" -v ca="$ca" -v cert="$cert" -v key="$key" -v alerts="${ALERTS:-}" \
        -v tickets="${TICKETS:-${ALERTS:-}}" -v heartbeat="${HEARTBEAT:-}" -v rules="$rules" -v alertmanager="$alertmanager" '
        function put(line, name, value,    at) {
            at = index(line, "@" name "@")
            return at ? substr(line, 1, at - 1) value substr(line, at + length(name) + 2) : line
        }
        / #plain$/ { if (scheme == "https") next; sub(/ #plain$/, "") }
        scheme == "https" { sub(/#tls /, "") }
        alerts != "" { sub(/#alerts /, "") }
        tickets != "" { sub(/#tickets /, "") }
        heartbeat != "" { sub(/#heartbeat /, "") }
        /^ *#/ { next }
        {
            $0 = put(put(put($0, "CA", ca), "CERT", cert), "KEY", key)
            $0 = put(put(put($0, "ALERTS", alerts), "TICKETS", tickets), "HEARTBEAT", heartbeat)
            $0 = put(put($0, "RULES", rules), "ALERTMANAGER", alertmanager)
            if (!index($0, "@SUPERVISOR@")) { print; next }
            many = split(supervisors, each, " ")
            for (i = 1; i <= many; i++) print put($0, "SUPERVISOR", each[i])
        }'
}
fill "$@" <"$here/monitoring/prometheus.yml" >"$FOLDER/prometheus.yml"
fill "$@" <"$here/monitoring/alertmanager.yml" >"$FOLDER/alertmanager.yml"

command -v prometheus >/dev/null || { echo "monitoring.sh: no prometheus (Debian: as root: apt-get install prometheus)" >&2; exit 1; }
running=""
# Again until it has ended: between fork and exec the shell's own handler takes the signal, and the one that is started never hears of it.
# `$!`: the newest may not be noted yet.
end() {
    trap - EXIT
    for pid in $running ${!:-}; do kill "$pid" 2>/dev/null || true; done
    for pid in $running ${!:-}; do while kill "$pid" 2>/dev/null; do sleep 0.2; done; done
}
trap end EXIT
trap 'exit 130' INT TERM HUP

# NAME WHERE-IT-LISTENS COMMAND...
start() {
    name=$1 where=$2
    shift 2
    "$@" >>"$FOLDER/$name.log" 2>&1 &
    running="$running $!"
    echo "$name: http://$where (log $FOLDER/$name.log)"
}
start prometheus "$prometheus" prometheus --config.file="$FOLDER/prometheus.yml" --enable-feature=exemplar-storage --storage.tsdb.path="$FOLDER/prometheus" \
    --web.listen-address="$prometheus"
am=$(command -v alertmanager || command -v prometheus-alertmanager || true)
if [ -n "$am" ]; then
    start alertmanager "$alertmanager" "$am" --config.file="$FOLDER/alertmanager.yml" --storage.path="$FOLDER/alertmanager" \
        --web.listen-address="$alertmanager" --cluster.listen-address=
    [ -n "${ALERTS:-}" ] || echo "alerts go to nobody: give ALERTS=URL of a webhook"
    [ -n "${HEARTBEAT:-}" ] || echo "nobody notices when this machine dies: give HEARTBEAT=URL"
else
    echo "missing: alertmanager (Debian: as root: apt-get install prometheus-alertmanager): alerts are shown by Prometheus, and told to nobody"
fi
if command -v grafana >/dev/null || command -v grafana-server >/dev/null; then
    grafana="grafana server"
    command -v grafana >/dev/null || grafana=grafana-server
    home=${GRAFANA_HOME:-/usr/share/grafana}
    # shellcheck disable=SC2086
    start grafana "$listen:${GRAFANA_PORT:-3000}" env PROMETHEUS="$prometheus" DASHBOARDS="$dashboards" \
        GF_PATHS_PROVISIONING="$here/monitoring/grafana" GF_PATHS_DATA="$FOLDER/grafana" GF_PATHS_LOGS="$FOLDER/grafana" \
        GF_SERVER_HTTP_ADDR="$listen" GF_SERVER_HTTP_PORT="${GRAFANA_PORT:-3000}" $grafana --homepath "$home"
else
    echo "missing: grafana (grafana.com/grafana/download): the dashboards are $dashboards/*.json"
fi

while for pid in $running; do kill -0 "$pid" 2>/dev/null || break 2; done; do sleep 1; done
echo "monitoring.sh: one of them has ended; its log is in $FOLDER" >&2
exit 1
