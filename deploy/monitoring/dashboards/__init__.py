"""What the Grafana dashboards show. `parts` says what a dashboard is made of; each other module is one."""
