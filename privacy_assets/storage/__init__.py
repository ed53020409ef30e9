"""Where things are kept: files on disk, objects in stores, and YAML that is read strictly."""
