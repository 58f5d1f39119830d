#!/usr/bin/env bash
# promtool over every rule and rule test in deploy/prometheus, amtool over the settings of Alertmanager.
set -euo pipefail
cd "$(dirname "$0")/../deploy/prometheus"
for program in promtool amtool; do
  command -v "$program" >/dev/null || { echo "$program is missing: scripts/system_tools.sh installs it" >&2; exit 1; }
done
promtool check config prometheus.yml
promtool check rules rules.yml alerts.yml
promtool test rules ./*_test.yml
amtool check-config alertmanager.yml
