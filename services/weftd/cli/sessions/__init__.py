"""Commands that connect to a running job: shell, exec, cp and port-forward."""
