"""What every tool that reports needs: statistics with intervals, tables, pictures, pages, findings."""
