"""What a plan and its lock become: node documents, cloud resources, cluster objects and a picture."""
