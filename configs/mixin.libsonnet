{
  grafanaDashboards+:: {
    'netmgr-egress.json': import 'grafana/netmgr-egress.json',
    'netmgr-budgets.json': import 'grafana/netmgr-budgets.json',
    'netmgr-talkers.json': import 'grafana/netmgr-talkers.json',
    'netmgr-accounting.json': import 'grafana/netmgr-accounting.json',
    'netmgr-pools.json': import 'grafana/netmgr-pools.json',
    'netmgr-nodes.json': import 'grafana/netmgr-nodes.json',
    'netmgr-cni.json': import 'grafana/netmgr-cni.json',
    'netmgr-sites.json': import 'grafana/netmgr-sites.json',
    'netmgr-controller.json': import 'grafana/netmgr-controller.json',
    'netmgr-costs.json': import 'grafana/netmgr-costs.json',
  },
  prometheusAlerts+:: std.parseYaml(importstr 'prometheus/alerts.yml'),
  prometheusRules+:: std.parseYaml(importstr 'prometheus/recording.yml'),
}
