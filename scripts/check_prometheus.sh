#!/usr/bin/env bash
# promtool over every rule and rule test in deploy/prometheus, amtool over the settings of Alertmanager.
set -euo pipefail
cd "$(dirname "$0")/../deploy/prometheus"
for program in promtool amtool; do
  if ! command -v "$program" >/dev/null; then
    [ "${CI:-}" = true ] && { echo "$program is missing, and CI must not skip" >&2; exit 1; }
    echo "$program is missing: the files of Prometheus go unchecked" >&2
    exit 0
  fi
done
promtool check config prometheus.yml
promtool check rules rules.yml alerts.yml
promtool test rules ./*_test.yml
amtool check-config alertmanager.yml
