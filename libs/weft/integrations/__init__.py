"""Weft as a part of other libraries, a module each. A module is imported where its library is installed, by the library
or by the user's program; nothing else of Weft imports it."""
