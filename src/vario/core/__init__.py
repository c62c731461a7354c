"""What every part of vario uses: records, names, schedules, errors."""
