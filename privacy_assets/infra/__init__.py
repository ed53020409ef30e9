"""Access to the machine: settings, files, object stores, processes and devices."""
