#!/usr/bin/env bash
# promtool over every rule that is written, amtool over the settings of Alertmanager. The unit tests of the rules, of
# minutes of series each, are among the tests: tests/deploy/test_rules.py.
set -euo pipefail
cd "$(dirname "$0")/.."
for program in promtool amtool; do
  command -v "$program" >/dev/null || { echo "$program is missing: scripts/system_tools.sh installs it" >&2; exit 1; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${VENV:-.venv}/bin/calib-serve" export monitoring "$folder"
cd "$folder/prometheus"
promtool check config prometheus.yml
promtool check rules rules.yml alerts.yml
amtool check-config alertmanager.yml
