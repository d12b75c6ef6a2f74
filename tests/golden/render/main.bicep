param adminUsername string

param nodeVmSize string

param sourceImageId string

@secure()
param sshPublicKey string

resource table_hub 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'hub'
  location: 'eastus'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'services-evals-0'
        properties: {
          addressPrefix: '172.17.0.0/18'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.253.34.4'
        }
      }
      {
        name: 'services-training-0'
        properties: {
          addressPrefix: '172.16.0.0/17'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.232.68.68'
        }
      }
      {
        name: 'services-training-1'
        properties: {
          addressPrefix: '172.16.128.0/17'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.232.68.69'
        }
      }
    ]
  }
}

resource table_hub__researchers 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'hub_researchers'
  location: 'eastus'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'services-evals-0'
        properties: {
          addressPrefix: '172.17.0.0/18'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.253.34.4'
        }
      }
      {
        name: 'services-training-0'
        properties: {
          addressPrefix: '172.16.0.0/17'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.232.68.68'
        }
      }
      {
        name: 'services-training-1'
        properties: {
          addressPrefix: '172.16.128.0/17'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.232.68.69'
        }
      }
      {
        name: 'nodes-evals-0'
        properties: {
          addressPrefix: '10.253.0.0/18'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.253.34.4'
        }
      }
    ]
  }
}

resource table_evals__nodes 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'evals_nodes'
  location: 'eastus'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'apart-0'
        properties: {
          addressPrefix: '10.0.0.0/8'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-1'
        properties: {
          addressPrefix: 'fd00:10::/40'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-2'
        properties: {
          addressPrefix: '172.16.0.0/12'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-3'
        properties: {
          addressPrefix: '100.64.0.0/16'
          nextHopType: 'None'
        }
      }
      {
        name: 'internet'
        properties: {
          addressPrefix: '0.0.0.0/0'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.254.255.4'
        }
      }
      {
        name: 'researchers-0'
        properties: {
          addressPrefix: '10.254.254.0/24'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.253.34.4'
        }
      }
    ]
  }
}

resource table_evals__nat 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'evals_nat'
  location: 'eastus'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'apart-0'
        properties: {
          addressPrefix: '10.0.0.0/8'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-1'
        properties: {
          addressPrefix: 'fd00:10::/40'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-2'
        properties: {
          addressPrefix: '172.16.0.0/12'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-3'
        properties: {
          addressPrefix: '100.64.0.0/16'
          nextHopType: 'None'
        }
      }
      {
        name: 'internet'
        properties: {
          addressPrefix: '0.0.0.0/0'
          nextHopType: 'VirtualAppliance'
          nextHopIpAddress: '10.254.255.4'
        }
      }
    ]
  }
}

resource table_training__nodes 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'training_nodes'
  location: 'westus3'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'apart-0'
        properties: {
          addressPrefix: '10.0.0.0/8'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-1'
        properties: {
          addressPrefix: 'fd00:10::/40'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-2'
        properties: {
          addressPrefix: '172.16.0.0/12'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-3'
        properties: {
          addressPrefix: '100.64.0.0/16'
          nextHopType: 'None'
        }
      }
    ]
  }
}

resource table_training__nat 'Microsoft.Network/routeTables@2024-05-01' = {
  name: 'training_nat'
  location: 'westus3'
  properties: {
    disableBgpRoutePropagation: true
    routes: [
      {
        name: 'apart-0'
        properties: {
          addressPrefix: '10.0.0.0/8'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-1'
        properties: {
          addressPrefix: 'fd00:10::/40'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-2'
        properties: {
          addressPrefix: '172.16.0.0/12'
          nextHopType: 'None'
        }
      }
      {
        name: 'apart-3'
        properties: {
          addressPrefix: '100.64.0.0/16'
          nextHopType: 'None'
        }
      }
    ]
  }
}

resource group_evals 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: 'evals'
  location: 'eastus'
  properties: {
    securityRules: [
      {
        name: 'own-inbound-v4'
        properties: {
          priority: 104
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.253.0.0/18'
            '172.17.0.0/18'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'own-inbound-v6'
        properties: {
          priority: 106
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            'fd00:10:ff:fe00::/56'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'hub-inbound-v4'
        properties: {
          priority: 114
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.254.254.0/23'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'apart-inbound-v4'
        properties: {
          priority: 204
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.0.0.0/8'
            '172.16.0.0/12'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'apart-inbound-v6'
        properties: {
          priority: 206
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            'fd00:10::/40'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'own-outbound-v4'
        properties: {
          priority: 104
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.253.0.0/18'
            '172.17.0.0/18'
          ]
        }
      }
      {
        name: 'own-outbound-v6'
        properties: {
          priority: 106
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            'fd00:10:ff:fe00::/56'
          ]
        }
      }
      {
        name: 'hub-outbound-v4'
        properties: {
          priority: 114
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.254.254.0/23'
          ]
        }
      }
      {
        name: 'apart-outbound-v4'
        properties: {
          priority: 204
          direction: 'Outbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.0.0.0/8'
            '172.16.0.0/12'
          ]
        }
      }
      {
        name: 'apart-outbound-v6'
        properties: {
          priority: 206
          direction: 'Outbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            'fd00:10::/40'
          ]
        }
      }
    ]
  }
}

resource group_training 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: 'training'
  location: 'westus3'
  properties: {
    securityRules: [
      {
        name: 'own-inbound-v4'
        properties: {
          priority: 104
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.224.0.0/12'
            '172.16.0.0/16'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'own-inbound-v6'
        properties: {
          priority: 106
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            'fd00:10:ff:ff00::/56'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'hub-inbound-v4'
        properties: {
          priority: 114
          direction: 'Inbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.254.254.0/23'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'apart-inbound-v4'
        properties: {
          priority: 204
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            '10.0.0.0/8'
            '172.16.0.0/12'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'apart-inbound-v6'
        properties: {
          priority: 206
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefixes: [
            'fd00:10::/40'
          ]
          destinationAddressPrefix: '*'
        }
      }
      {
        name: 'own-outbound-v4'
        properties: {
          priority: 104
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.224.0.0/12'
            '172.16.0.0/16'
          ]
        }
      }
      {
        name: 'own-outbound-v6'
        properties: {
          priority: 106
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            'fd00:10:ff:ff00::/56'
          ]
        }
      }
      {
        name: 'hub-outbound-v4'
        properties: {
          priority: 114
          direction: 'Outbound'
          access: 'Allow'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.254.254.0/23'
          ]
        }
      }
      {
        name: 'apart-outbound-v4'
        properties: {
          priority: 204
          direction: 'Outbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            '10.0.0.0/8'
            '172.16.0.0/12'
          ]
        }
      }
      {
        name: 'apart-outbound-v6'
        properties: {
          priority: 206
          direction: 'Outbound'
          access: 'Deny'
          protocol: '*'
          sourcePortRange: '*'
          destinationPortRange: '*'
          sourceAddressPrefix: '*'
          destinationAddressPrefixes: [
            'fd00:10::/40'
          ]
        }
      }
    ]
  }
}

resource address_training__0 'Microsoft.Network/publicIPAddresses@2024-05-01' = {
  name: 'training_0'
  location: 'westus3'
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIPAllocationMethod: 'Static'
  }
}

resource gateway_training 'Microsoft.Network/natGateways@2024-05-01' = {
  name: 'training'
  location: 'westus3'
  sku: {
    name: 'Standard'
  }
  properties: {
    publicIpAddresses: [
      {
        id: address_training__0.id
      }
    ]
  }
}

resource vnet_hub 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: 'hub'
  location: 'eastus'
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.254.254.0/23'
      ]
    }
    subnets: [
      {
        name: 'hub_routers'
        properties: {
          addressPrefixes: [
            '10.254.255.0/28'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_hub.id
          }
        }
      }
      {
        name: 'hub_researchers-0'
        properties: {
          addressPrefixes: [
            '10.254.254.0/24'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_hub__researchers.id
          }
        }
      }
    ]
  }
}

resource vnet_evals 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: 'evals'
  location: 'eastus'
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.253.0.0/18'
        'fd00:10:ff:fe00::/56'
      ]
    }
    subnets: [
      {
        name: 'evals_nat'
        properties: {
          addressPrefixes: [
            '10.253.34.0/28'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_evals__nat.id
          }
          networkSecurityGroup: {
            id: group_evals.id
          }
        }
      }
      {
        name: 'evals-cpu'
        properties: {
          addressPrefixes: [
            '10.253.32.0/23'
            '10.253.0.0/19'
            'fd00:10:ff:fe00::/64'
            'fd00:10:ff:fe01::/64'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_evals__nodes.id
          }
          networkSecurityGroup: {
            id: group_evals.id
          }
        }
      }
    ]
  }
}

resource vnet_training 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: 'training'
  location: 'westus3'
  properties: {
    addressSpace: {
      addressPrefixes: [
        '10.224.0.0/12'
        'fd00:10:ff:ff00::/56'
      ]
    }
    subnets: [
      {
        name: 'training_nat'
        properties: {
          addressPrefixes: [
            '10.232.68.64/28'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_training__nat.id
          }
          networkSecurityGroup: {
            id: group_training.id
          }
          natGateway: {
            id: gateway_training.id
          }
        }
      }
      {
        name: 'training-gpu'
        properties: {
          addressPrefixes: [
            '10.232.0.0/18'
            '10.224.0.0/13'
            'fd00:10:ff:ff00::/64'
            'fd00:10:ff:ff01::/64'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_training__nodes.id
          }
          networkSecurityGroup: {
            id: group_training.id
          }
          natGateway: {
            id: gateway_training.id
          }
        }
      }
      {
        name: 'training-system'
        properties: {
          addressPrefixes: [
            '10.232.68.0/26'
            '10.232.64.0/22'
            'fd00:10:ff:ff02::/64'
            'fd00:10:ff:ff03::/64'
          ]
          defaultOutboundAccess: false
          routeTable: {
            id: table_training__nodes.id
          }
          networkSecurityGroup: {
            id: group_training.id
          }
          natGateway: {
            id: gateway_training.id
          }
        }
      }
    ]
  }
}

resource peering_hub__to__evals 'Microsoft.Network/virtualNetworks/virtualNetworkPeerings@2024-05-01' = {
  parent: vnet_hub
  name: 'hub_to_evals'
  properties: {
    remoteVirtualNetwork: {
      id: vnet_evals.id
    }
    allowVirtualNetworkAccess: true
    allowForwardedTraffic: true
    allowGatewayTransit: false
    useRemoteGateways: false
  }
}

resource peering_hub__to__training 'Microsoft.Network/virtualNetworks/virtualNetworkPeerings@2024-05-01' = {
  parent: vnet_hub
  name: 'hub_to_training'
  properties: {
    remoteVirtualNetwork: {
      id: vnet_training.id
    }
    allowVirtualNetworkAccess: true
    allowForwardedTraffic: true
    allowGatewayTransit: false
    useRemoteGateways: false
  }
  dependsOn: [
    peering_hub__to__evals
  ]
}

resource peering_evals__to__hub 'Microsoft.Network/virtualNetworks/virtualNetworkPeerings@2024-05-01' = {
  parent: vnet_evals
  name: 'evals_to_hub'
  properties: {
    remoteVirtualNetwork: {
      id: vnet_hub.id
    }
    allowVirtualNetworkAccess: true
    allowForwardedTraffic: true
    allowGatewayTransit: false
    useRemoteGateways: false
  }
  dependsOn: [
    peering_hub__to__training
  ]
}

resource peering_training__to__hub 'Microsoft.Network/virtualNetworks/virtualNetworkPeerings@2024-05-01' = {
  parent: vnet_training
  name: 'training_to_hub'
  properties: {
    remoteVirtualNetwork: {
      id: vnet_hub.id
    }
    allowVirtualNetworkAccess: true
    allowForwardedTraffic: false
    allowGatewayTransit: false
    useRemoteGateways: false
  }
  dependsOn: [
    peering_evals__to__hub
  ]
}

resource nodes_evals_cpu 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'evals-cpu'
  location: 'eastus'
  sku: {
    name: nodeVmSize
    capacity: 300
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'evals-cpu-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_evals.id}/subnets/evals-cpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_evals.id}/subnets/evals-cpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_evals.id}/subnets/evals-cpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_evals.id}/subnets/evals-cpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__1 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_1'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-1--b07e3ac0-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__2 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_2'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-2--e8aba498-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__3 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_3'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-3--614f3c05-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__4 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_4'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-4--bc498659-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__5 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_5'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-5--c0e34f19-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__6 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_6'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 1000
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-6--a39222ee-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_gpu__0__7 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-gpu_0_7'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 0
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-gpu-0-7--02d30646-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-gpu'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}

resource nodes_training_system 'Microsoft.Compute/virtualMachineScaleSets@2024-07-01' = {
  name: 'training-system'
  location: 'westus3'
  sku: {
    name: nodeVmSize
    capacity: 40
  }
  properties: {
    overprovision: false
    singlePlacementGroup: false
    upgradePolicy: {
      mode: 'Manual'
    }
    virtualMachineProfile: {
      osProfile: {
        computerNamePrefix: 'training-system-'
        adminUsername: adminUsername
        linuxConfiguration: {
          disablePasswordAuthentication: true
          ssh: {
            publicKeys: [
              {
                path: '/home/${adminUsername}/.ssh/authorized_keys'
                keyData: sshPublicKey
              }
            ]
          }
        }
      }
      storageProfile: {
        imageReference: {
          id: sourceImageId
        }
        osDisk: {
          createOption: 'FromImage'
          caching: 'ReadOnly'
        }
      }
      networkProfile: {
        networkInterfaceConfigurations: [
          {
            name: 'eth0'
            properties: {
              primary: true
              enableIPForwarding: true
              enableAcceleratedNetworking: true
              ipConfigurations: [
                {
                  name: 'node-v4'
                  properties: {
                    primary: true
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'node-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
                {
                  name: 'pods-0'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-1'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-2'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-3'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-4'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-5'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-7'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-8'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-9'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-10'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-11'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv4'
                  }
                }
                {
                  name: 'pods-v6'
                  properties: {
                    primary: false
                    subnet: {
                      id: '${vnet_training.id}/subnets/training-system'
                    }
                    privateIPAddressVersion: 'IPv6'
                  }
                }
              ]
            }
          }
        ]
      }
    }
  }
}
