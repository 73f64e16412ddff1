"""Pictures that a single chapter shows, one file per topic, built from the parts that `helpers.draw` provides."""
