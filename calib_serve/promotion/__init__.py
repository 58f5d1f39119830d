"""From one version of a served model to the next, by what labels say, and back again."""
