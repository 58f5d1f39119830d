"""Files for Prometheus, Alertmanager and Grafana: rules, alerts, a dashboard and example settings.

Each is a file in ``templates``, in which a handful of values are filled in; deploy/ holds what comes of it.
"""
