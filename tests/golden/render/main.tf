terraform {
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = "~> 4.0"
    }
  }
}

variable "admin_username" {
  type = string
}

variable "documents" {
  type = string
}

variable "node_vm_size" {
  type = string
}

variable "source_image_id" {
  type = string
}

variable "ssh_public_key" {
  type = string
}

resource "azurerm_resource_group" "this" {
  name     = "atlas-net"
  location = "eastus"
}

resource "azurerm_virtual_network" "hub" {
  name                = "hub"
  resource_group_name = azurerm_resource_group.this.name
  location            = "eastus"
  address_space       = ["10.254.254.0/23"]
}

resource "azurerm_subnet" "hub_routers" {
  name                            = "hub_routers"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.hub.name
  address_prefixes                = ["10.254.255.0/28"]
  default_outbound_access_enabled = false
}

resource "azurerm_subnet" "hub_researchers-0" {
  name                            = "hub_researchers-0"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.hub.name
  address_prefixes                = ["10.254.254.0/24"]
  default_outbound_access_enabled = false
}

resource "azurerm_virtual_network" "evals" {
  name                = "evals"
  resource_group_name = azurerm_resource_group.this.name
  location            = "eastus"
  address_space       = ["10.45.0.0/18", "fd00:10:17:6800::/56"]
}

resource "azurerm_subnet" "evals_nat" {
  name                            = "evals_nat"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.evals.name
  address_prefixes                = ["10.45.32.0/28"]
  default_outbound_access_enabled = false
}

resource "azurerm_subnet" "evals-cpu" {
  name                            = "evals-cpu"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.evals.name
  address_prefixes                = ["10.45.0.0/19", "fd00:10:17:6800::/64"]
  default_outbound_access_enabled = false
}

resource "azurerm_virtual_network" "training" {
  name                = "training"
  resource_group_name = azurerm_resource_group.this.name
  location            = "westus3"
  address_space       = ["10.128.0.0/13", "10.251.232.0/21", "fd00:10:9b:4000::/56"]
}

resource "azurerm_subnet" "training_nat" {
  name                            = "training_nat"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.training.name
  address_prefixes                = ["10.251.236.0/28"]
  default_outbound_access_enabled = false
}

resource "azurerm_subnet" "training-gpu" {
  name                            = "training-gpu"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.training.name
  address_prefixes                = ["10.128.0.0/13", "fd00:10:9b:4000::/64"]
  default_outbound_access_enabled = false
}

resource "azurerm_subnet" "training-system" {
  name                            = "training-system"
  resource_group_name             = azurerm_resource_group.this.name
  virtual_network_name            = azurerm_virtual_network.training.name
  address_prefixes                = ["10.251.232.0/22", "fd00:10:9b:4001::/64"]
  default_outbound_access_enabled = false
}

resource "azurerm_virtual_network_peering" "hub_to_evals" {
  name                         = "hub_to_evals"
  resource_group_name          = azurerm_resource_group.this.name
  virtual_network_name         = azurerm_virtual_network.hub.name
  remote_virtual_network_id    = azurerm_virtual_network.evals.id
  allow_virtual_network_access = true
  allow_forwarded_traffic      = true
  allow_gateway_transit        = false
  use_remote_gateways          = false
  triggers = {
    remote_address_space = join(",", azurerm_virtual_network.evals.address_space)
  }
}

resource "azurerm_virtual_network_peering" "hub_to_training" {
  name                         = "hub_to_training"
  resource_group_name          = azurerm_resource_group.this.name
  virtual_network_name         = azurerm_virtual_network.hub.name
  remote_virtual_network_id    = azurerm_virtual_network.training.id
  allow_virtual_network_access = true
  allow_forwarded_traffic      = true
  allow_gateway_transit        = false
  use_remote_gateways          = false
  triggers = {
    remote_address_space = join(",", azurerm_virtual_network.training.address_space)
  }
}

resource "azurerm_virtual_network_peering" "evals_to_hub" {
  name                         = "evals_to_hub"
  resource_group_name          = azurerm_resource_group.this.name
  virtual_network_name         = azurerm_virtual_network.evals.name
  remote_virtual_network_id    = azurerm_virtual_network.hub.id
  allow_virtual_network_access = true
  allow_forwarded_traffic      = true
  allow_gateway_transit        = false
  use_remote_gateways          = false
  triggers = {
    remote_address_space = join(",", azurerm_virtual_network.hub.address_space)
  }
}

resource "azurerm_virtual_network_peering" "training_to_hub" {
  name                         = "training_to_hub"
  resource_group_name          = azurerm_resource_group.this.name
  virtual_network_name         = azurerm_virtual_network.training.name
  remote_virtual_network_id    = azurerm_virtual_network.hub.id
  allow_virtual_network_access = true
  allow_forwarded_traffic      = false
  allow_gateway_transit        = false
  use_remote_gateways          = false
  triggers = {
    remote_address_space = join(",", azurerm_virtual_network.hub.address_space)
  }
}

resource "azurerm_route_table" "hub" {
  name                          = "hub"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "eastus"
  bgp_route_propagation_enabled = false

  route {
    name                   = "services-evals-0"
    address_prefix         = "172.23.192.0/18"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.45.32.4"
  }

  route {
    name                   = "services-training-0"
    address_prefix         = "172.20.0.0/17"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.251.236.4"
  }

  route {
    name                   = "services-training-1"
    address_prefix         = "172.20.128.0/17"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.251.236.5"
  }
}

resource "azurerm_route_table" "hub_researchers" {
  name                          = "hub_researchers"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "eastus"
  bgp_route_propagation_enabled = false

  route {
    name                   = "services-evals-0"
    address_prefix         = "172.23.192.0/18"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.45.32.4"
  }

  route {
    name                   = "services-training-0"
    address_prefix         = "172.20.0.0/17"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.251.236.4"
  }

  route {
    name                   = "services-training-1"
    address_prefix         = "172.20.128.0/17"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.251.236.5"
  }

  route {
    name                   = "nodes-evals-0"
    address_prefix         = "10.45.0.0/18"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.45.32.4"
  }
}

resource "azurerm_route_table" "evals_nodes" {
  name                          = "evals_nodes"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "eastus"
  bgp_route_propagation_enabled = false

  route {
    name           = "apart-0"
    address_prefix = "10.0.0.0/8"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-1"
    address_prefix = "fd00:10::/40"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-2"
    address_prefix = "172.16.0.0/12"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-3"
    address_prefix = "100.64.0.0/16"
    next_hop_type  = "None"
  }

  route {
    name                   = "internet"
    address_prefix         = "0.0.0.0/0"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.254.255.4"
  }

  route {
    name                   = "researchers-0"
    address_prefix         = "10.254.254.0/24"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.45.32.4"
  }
}

resource "azurerm_route_table" "evals_nat" {
  name                          = "evals_nat"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "eastus"
  bgp_route_propagation_enabled = false

  route {
    name           = "apart-0"
    address_prefix = "10.0.0.0/8"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-1"
    address_prefix = "fd00:10::/40"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-2"
    address_prefix = "172.16.0.0/12"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-3"
    address_prefix = "100.64.0.0/16"
    next_hop_type  = "None"
  }

  route {
    name                   = "internet"
    address_prefix         = "0.0.0.0/0"
    next_hop_type          = "VirtualAppliance"
    next_hop_in_ip_address = "10.254.255.4"
  }
}

resource "azurerm_route_table" "training_nodes" {
  name                          = "training_nodes"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "westus3"
  bgp_route_propagation_enabled = false

  route {
    name           = "apart-0"
    address_prefix = "10.0.0.0/8"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-1"
    address_prefix = "fd00:10::/40"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-2"
    address_prefix = "172.16.0.0/12"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-3"
    address_prefix = "100.64.0.0/16"
    next_hop_type  = "None"
  }
}

resource "azurerm_route_table" "training_nat" {
  name                          = "training_nat"
  resource_group_name           = azurerm_resource_group.this.name
  location                      = "westus3"
  bgp_route_propagation_enabled = false

  route {
    name           = "apart-0"
    address_prefix = "10.0.0.0/8"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-1"
    address_prefix = "fd00:10::/40"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-2"
    address_prefix = "172.16.0.0/12"
    next_hop_type  = "None"
  }

  route {
    name           = "apart-3"
    address_prefix = "100.64.0.0/16"
    next_hop_type  = "None"
  }
}

resource "azurerm_network_security_group" "evals" {
  name                = "evals"
  resource_group_name = azurerm_resource_group.this.name
  location            = "eastus"

  security_rule {
    name                       = "own-inbound-v4"
    priority                   = 104
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.45.0.0/18", "172.23.192.0/18"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "own-inbound-v6"
    priority                   = 106
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["fd00:10:17:6800::/56"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "hub-inbound-v4"
    priority                   = 114
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.254.254.0/23"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "apart-inbound-v4"
    priority                   = 204
    direction                  = "Inbound"
    access                     = "Deny"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.0.0.0/8", "172.16.0.0/12"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "apart-inbound-v6"
    priority                   = 206
    direction                  = "Inbound"
    access                     = "Deny"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["fd00:10::/40"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                         = "own-outbound-v4"
    priority                     = 104
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.45.0.0/18", "172.23.192.0/18"]
  }

  security_rule {
    name                         = "own-outbound-v6"
    priority                     = 106
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["fd00:10:17:6800::/56"]
  }

  security_rule {
    name                         = "hub-outbound-v4"
    priority                     = 114
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.254.254.0/23"]
  }

  security_rule {
    name                         = "apart-outbound-v4"
    priority                     = 204
    direction                    = "Outbound"
    access                       = "Deny"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.0.0.0/8", "172.16.0.0/12"]
  }

  security_rule {
    name                         = "apart-outbound-v6"
    priority                     = 206
    direction                    = "Outbound"
    access                       = "Deny"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["fd00:10::/40"]
  }
}

resource "azurerm_network_security_group" "training" {
  name                = "training"
  resource_group_name = azurerm_resource_group.this.name
  location            = "westus3"

  security_rule {
    name                       = "own-inbound-v4"
    priority                   = 104
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.128.0.0/13", "10.251.232.0/21", "172.20.0.0/16"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "own-inbound-v6"
    priority                   = 106
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["fd00:10:9b:4000::/56"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "hub-inbound-v4"
    priority                   = 114
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.254.254.0/23"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "apart-inbound-v4"
    priority                   = 204
    direction                  = "Inbound"
    access                     = "Deny"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["10.0.0.0/8", "172.16.0.0/12"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                       = "apart-inbound-v6"
    priority                   = 206
    direction                  = "Inbound"
    access                     = "Deny"
    protocol                   = "*"
    source_port_range          = "*"
    destination_port_range     = "*"
    source_address_prefixes    = ["fd00:10::/40"]
    destination_address_prefix = "*"
  }

  security_rule {
    name                         = "own-outbound-v4"
    priority                     = 104
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.128.0.0/13", "10.251.232.0/21", "172.20.0.0/16"]
  }

  security_rule {
    name                         = "own-outbound-v6"
    priority                     = 106
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["fd00:10:9b:4000::/56"]
  }

  security_rule {
    name                         = "hub-outbound-v4"
    priority                     = 114
    direction                    = "Outbound"
    access                       = "Allow"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.254.254.0/23"]
  }

  security_rule {
    name                         = "apart-outbound-v4"
    priority                     = 204
    direction                    = "Outbound"
    access                       = "Deny"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["10.0.0.0/8", "172.16.0.0/12"]
  }

  security_rule {
    name                         = "apart-outbound-v6"
    priority                     = 206
    direction                    = "Outbound"
    access                       = "Deny"
    protocol                     = "*"
    source_port_range            = "*"
    destination_port_range       = "*"
    source_address_prefix        = "*"
    destination_address_prefixes = ["fd00:10::/40"]
  }
}

resource "azurerm_public_ip" "hub" {
  count               = 1
  name                = "hub_${count.index}"
  resource_group_name = azurerm_resource_group.this.name
  location            = "eastus"
  allocation_method   = "Static"
  sku                 = "Standard"
}

resource "azurerm_nat_gateway" "hub" {
  name                = "hub"
  resource_group_name = azurerm_resource_group.this.name
  location            = "eastus"
  sku_name            = "Standard"
}

resource "azurerm_nat_gateway_public_ip_association" "hub" {
  count                = 1
  nat_gateway_id       = azurerm_nat_gateway.hub.id
  public_ip_address_id = azurerm_public_ip.hub[count.index].id
}

resource "azurerm_public_ip" "training" {
  count               = 1
  name                = "training_${count.index}"
  resource_group_name = azurerm_resource_group.this.name
  location            = "westus3"
  allocation_method   = "Static"
  sku                 = "Standard"
}

resource "azurerm_nat_gateway" "training" {
  name                = "training"
  resource_group_name = azurerm_resource_group.this.name
  location            = "westus3"
  sku_name            = "Standard"
}

resource "azurerm_nat_gateway_public_ip_association" "training" {
  count                = 1
  nat_gateway_id       = azurerm_nat_gateway.training.id
  public_ip_address_id = azurerm_public_ip.training[count.index].id
}

resource "azurerm_subnet_route_table_association" "hub_routers" {
  subnet_id      = azurerm_subnet.hub_routers.id
  route_table_id = azurerm_route_table.hub.id
}

resource "azurerm_subnet_nat_gateway_association" "hub_routers" {
  subnet_id      = azurerm_subnet.hub_routers.id
  nat_gateway_id = azurerm_nat_gateway.hub.id
}

resource "azurerm_subnet_route_table_association" "hub_researchers-0" {
  subnet_id      = azurerm_subnet.hub_researchers-0.id
  route_table_id = azurerm_route_table.hub_researchers.id
}

resource "azurerm_subnet_nat_gateway_association" "hub_researchers-0" {
  subnet_id      = azurerm_subnet.hub_researchers-0.id
  nat_gateway_id = azurerm_nat_gateway.hub.id
}

resource "azurerm_subnet_route_table_association" "evals_nat" {
  subnet_id      = azurerm_subnet.evals_nat.id
  route_table_id = azurerm_route_table.evals_nat.id
}

resource "azurerm_subnet_network_security_group_association" "evals_nat" {
  subnet_id                 = azurerm_subnet.evals_nat.id
  network_security_group_id = azurerm_network_security_group.evals.id
}

resource "azurerm_subnet_route_table_association" "evals-cpu" {
  subnet_id      = azurerm_subnet.evals-cpu.id
  route_table_id = azurerm_route_table.evals_nodes.id
}

resource "azurerm_subnet_network_security_group_association" "evals-cpu" {
  subnet_id                 = azurerm_subnet.evals-cpu.id
  network_security_group_id = azurerm_network_security_group.evals.id
}

resource "azurerm_subnet_route_table_association" "training_nat" {
  subnet_id      = azurerm_subnet.training_nat.id
  route_table_id = azurerm_route_table.training_nat.id
}

resource "azurerm_subnet_network_security_group_association" "training_nat" {
  subnet_id                 = azurerm_subnet.training_nat.id
  network_security_group_id = azurerm_network_security_group.training.id
}

resource "azurerm_subnet_nat_gateway_association" "training_nat" {
  subnet_id      = azurerm_subnet.training_nat.id
  nat_gateway_id = azurerm_nat_gateway.training.id
}

resource "azurerm_subnet_route_table_association" "training-gpu" {
  subnet_id      = azurerm_subnet.training-gpu.id
  route_table_id = azurerm_route_table.training_nodes.id
}

resource "azurerm_subnet_network_security_group_association" "training-gpu" {
  subnet_id                 = azurerm_subnet.training-gpu.id
  network_security_group_id = azurerm_network_security_group.training.id
}

resource "azurerm_subnet_nat_gateway_association" "training-gpu" {
  subnet_id      = azurerm_subnet.training-gpu.id
  nat_gateway_id = azurerm_nat_gateway.training.id
}

resource "azurerm_subnet_route_table_association" "training-system" {
  subnet_id      = azurerm_subnet.training-system.id
  route_table_id = azurerm_route_table.training_nodes.id
}

resource "azurerm_subnet_network_security_group_association" "training-system" {
  subnet_id                 = azurerm_subnet.training-system.id
  network_security_group_id = azurerm_network_security_group.training.id
}

resource "azurerm_subnet_nat_gateway_association" "training-system" {
  subnet_id      = azurerm_subnet.training-system.id
  nat_gateway_id = azurerm_nat_gateway.training.id
}

resource "azurerm_network_interface" "hub_router_0" {
  name                           = "hub_router_0"
  resource_group_name            = azurerm_resource_group.this.name
  location                       = "eastus"
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true

  ip_configuration {
    name                          = "v4"
    primary                       = true
    subnet_id                     = azurerm_subnet.hub_routers.id
    private_ip_address_version    = "IPv4"
    private_ip_address_allocation = "Static"
    private_ip_address            = "10.254.255.4"
  }
}

resource "azurerm_linux_virtual_machine" "hub_router_0" {
  name                  = "hub_router_0"
  resource_group_name   = azurerm_resource_group.this.name
  location              = "eastus"
  size                  = "Standard_D16s_v5"
  computer_name         = "hub-router-0"
  network_interface_ids = [azurerm_network_interface.hub_router_0.id]
  admin_username        = var.admin_username
  source_image_id       = var.source_image_id
  custom_data           = base64encode("#cloud-config\n${yamlencode({ write_files = [{ path = "/etc/netmgr/node.yaml", content = file("${var.documents}/router-0.hub.yaml") }] })}")

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  lifecycle {
    ignore_changes = [custom_data]
  }
}

resource "azurerm_network_interface" "hub_router_1" {
  name                           = "hub_router_1"
  resource_group_name            = azurerm_resource_group.this.name
  location                       = "eastus"
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true

  ip_configuration {
    name                          = "v4"
    primary                       = true
    subnet_id                     = azurerm_subnet.hub_routers.id
    private_ip_address_version    = "IPv4"
    private_ip_address_allocation = "Static"
    private_ip_address            = "10.254.255.5"
  }
}

resource "azurerm_linux_virtual_machine" "hub_router_1" {
  name                  = "hub_router_1"
  resource_group_name   = azurerm_resource_group.this.name
  location              = "eastus"
  size                  = "Standard_D16s_v5"
  computer_name         = "hub-router-1"
  network_interface_ids = [azurerm_network_interface.hub_router_1.id]
  admin_username        = var.admin_username
  source_image_id       = var.source_image_id
  custom_data           = base64encode("#cloud-config\n${yamlencode({ write_files = [{ path = "/etc/netmgr/node.yaml", content = file("${var.documents}/router-1.hub.yaml") }] })}")

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  lifecycle {
    ignore_changes = [custom_data]
  }
}

resource "azurerm_network_interface" "evals_nat_0" {
  name                           = "evals_nat_0"
  resource_group_name            = azurerm_resource_group.this.name
  location                       = "eastus"
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true

  ip_configuration {
    name                          = "v4"
    primary                       = true
    subnet_id                     = azurerm_subnet.evals_nat.id
    private_ip_address_version    = "IPv4"
    private_ip_address_allocation = "Static"
    private_ip_address            = "10.45.32.4"
  }
}

resource "azurerm_linux_virtual_machine" "evals_nat_0" {
  name                  = "evals_nat_0"
  resource_group_name   = azurerm_resource_group.this.name
  location              = "eastus"
  size                  = "Standard_D16s_v5"
  computer_name         = "evals-nat-0"
  network_interface_ids = [azurerm_network_interface.evals_nat_0.id]
  admin_username        = var.admin_username
  source_image_id       = var.source_image_id
  custom_data           = base64encode("#cloud-config\n${yamlencode({ write_files = [{ path = "/etc/netmgr/node.yaml", content = file("${var.documents}/nat-0.evals.yaml") }] })}")

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  lifecycle {
    ignore_changes = [custom_data]
  }
}

resource "azurerm_network_interface" "training_nat_0" {
  name                           = "training_nat_0"
  resource_group_name            = azurerm_resource_group.this.name
  location                       = "westus3"
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true

  ip_configuration {
    name                          = "v4"
    primary                       = true
    subnet_id                     = azurerm_subnet.training_nat.id
    private_ip_address_version    = "IPv4"
    private_ip_address_allocation = "Static"
    private_ip_address            = "10.251.236.4"
  }
}

resource "azurerm_linux_virtual_machine" "training_nat_0" {
  name                  = "training_nat_0"
  resource_group_name   = azurerm_resource_group.this.name
  location              = "westus3"
  size                  = "Standard_D16s_v5"
  computer_name         = "training-nat-0"
  network_interface_ids = [azurerm_network_interface.training_nat_0.id]
  admin_username        = var.admin_username
  source_image_id       = var.source_image_id
  custom_data           = base64encode("#cloud-config\n${yamlencode({ write_files = [{ path = "/etc/netmgr/node.yaml", content = file("${var.documents}/nat-0.training.yaml") }] })}")

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  lifecycle {
    ignore_changes = [custom_data]
  }
}

resource "azurerm_network_interface" "training_nat_1" {
  name                           = "training_nat_1"
  resource_group_name            = azurerm_resource_group.this.name
  location                       = "westus3"
  ip_forwarding_enabled          = true
  accelerated_networking_enabled = true

  ip_configuration {
    name                          = "v4"
    primary                       = true
    subnet_id                     = azurerm_subnet.training_nat.id
    private_ip_address_version    = "IPv4"
    private_ip_address_allocation = "Static"
    private_ip_address            = "10.251.236.5"
  }
}

resource "azurerm_linux_virtual_machine" "training_nat_1" {
  name                  = "training_nat_1"
  resource_group_name   = azurerm_resource_group.this.name
  location              = "westus3"
  size                  = "Standard_D16s_v5"
  computer_name         = "training-nat-1"
  network_interface_ids = [azurerm_network_interface.training_nat_1.id]
  admin_username        = var.admin_username
  source_image_id       = var.source_image_id
  custom_data           = base64encode("#cloud-config\n${yamlencode({ write_files = [{ path = "/etc/netmgr/node.yaml", content = file("${var.documents}/nat-1.training.yaml") }] })}")

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  lifecycle {
    ignore_changes = [custom_data]
  }
}

resource "azurerm_linux_virtual_machine_scale_set" "training-system" {
  name                   = "training-system"
  resource_group_name    = azurerm_resource_group.this.name
  location               = "westus3"
  sku                    = var.node_vm_size
  instances              = 40
  computer_name_prefix   = "training-system-"
  admin_username         = var.admin_username
  source_image_id        = var.source_image_id
  overprovision          = false
  single_placement_group = false

  admin_ssh_key {
    username   = var.admin_username
    public_key = var.ssh_public_key
  }

  os_disk {
    caching              = "ReadOnly"
    storage_account_type = "Premium_LRS"
  }

  network_interface {
    name                          = "eth0"
    primary                       = true
    enable_ip_forwarding          = true
    enable_accelerated_networking = true

    ip_configuration {
      name      = "node-v4"
      primary   = true
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "node-v6"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v4-0"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-1"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-2"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-3"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-4"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-5"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-6"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-7"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-8"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-9"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-10"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v4-11"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv4"
    }

    ip_configuration {
      name      = "pods-v6-0"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-1"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-2"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-3"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-4"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-5"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-6"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-7"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-8"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-9"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-10"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }

    ip_configuration {
      name      = "pods-v6-11"
      primary   = false
      subnet_id = azurerm_subnet.training-system.id
      version   = "IPv6"
    }
  }
}
