"""What a relaxation returns: records, tables, histories, trajectories, reports."""
