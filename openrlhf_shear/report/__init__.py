"""What every tool that reports needs: estimates with intervals, tables, figures, findings, pages."""
