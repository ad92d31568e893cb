"""The parts of `weft simulate`.

`options` says what can be asked for, `plan` makes runs of it, `inputs` reads or generates what they run on, `running`
runs them, `results` shows what came out.
"""
