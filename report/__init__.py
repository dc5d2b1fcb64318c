"""Pictures and tables of a plan or a run, from documents and timelines alone."""
