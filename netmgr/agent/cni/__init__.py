"""The CNI verbs: from the socket that launchers ask to the attachments of the node."""
