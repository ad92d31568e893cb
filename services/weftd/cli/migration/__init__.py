"""Job files of other systems as job files of Weft; what has no counterpart is named, never dropped in silence."""
