"""Which rank holds what, as the ranks' structures tell it."""

from vario.runs.files.layout import Layout


def layout(structures, read=None):
    def structure(rank):
        if read is not None:
            read.append(rank)
        return {"parameters": structures[rank]}

    return Layout(structures, structure)


def entry(name, replicas=(), box=None):
    return {"name": name, "replicas": list(replicas), "box": box}


def test_of_many_replicas_one_structure_is_read():
    read = []
    found = layout({rank: [entry("w", range(300)), entry("v", range(300))] for rank in range(300)}, read)
    assert read == [0]
    assert found.holders("w") == [list(range(300))]
    assert found.alike("w:exp_avg", 299)[0] == 0


def test_a_rank_that_shares_only_some_parameters_is_read():
    read = []
    found = layout({0: [entry("w", [0, 1]), entry("v", [0])], 1: [entry("w", [0, 1]), entry("u", [1])]}, read)
    assert read == [0, 1]
    assert found.holders("w") == [[0, 1]]
    assert (found.holders("v"), found.holders("u")) == ([[0]], [[1]])


def test_shards_are_parts_and_their_replicas_count_once():
    halves = [[[0, 2]], [[2, 4]]]
    found = layout({rank: [entry("w", [rank % 2, rank % 2 + 2], halves[rank % 2])] for rank in range(4)})
    assert found.holders("w") == [[0, 2], [1, 3]]
    assert [found.part("w", rank) for rank in range(4)] == [0, 1, 0, 1]


def test_the_same_part_of_models_side_by_side_counts_once_and_is_not_alike():
    found = layout({rank: [entry("w", [0, 1] if rank < 2 else [2, 3])] for rank in range(4)})
    assert found.holders("w") == [[0, 1, 2, 3]]
    assert [found.alike("w", rank) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_ranks_that_know_nothing_of_each_other_count_once_and_stand_for_themselves():
    found = layout({rank: [entry("w")] for rank in range(2)})
    assert found.holders("w") == [[0, 1]]
    assert [found.alike("w", rank) for rank in range(2)] == [[0], [1]]
    assert (found.holders("other"), found.part("other", 0), found.alike("other", 5)) == ([], None, [5])


def test_a_rank_knows_itself_better_than_others_do():
    found = layout({0: [entry("w", [0, 1], [[0, 4]]), entry("v", [0])], 1: [entry("w", [1], [[4, 8]])]})
    assert found.holders("w") == [[0], [1]]
    assert found.alike("w", 1) == [1]


def test_ranks_with_one_part_that_are_not_known_to_hold_the_same_are_strangers():
    found = layout(
        {
            0: [entry("shared", [0, 1]), entry("expert"), entry("half", [0], [[0, 2]])],
            1: [entry("shared", [0, 1]), entry("expert"), entry("half", [1], [[2, 4]])],
        }
    )
    assert found.has_strangers
    assert found.strangers("expert:exp_avg") == [[0], [1]]
    assert [found.counted("expert", rank) for rank in range(2)] == [0, -1]
    assert found.strangers("shared") == found.strangers("half") == []
    assert [found.counted("shared", rank) for rank in range(2)] == [0, 0]
    assert [found.counted("half", rank) for rank in range(2)] == [0, 1]


def test_replicas_that_all_ranks_tell_of_are_no_strangers():
    found = layout({rank: [entry("w", range(4)), entry("v", [rank], [[rank, rank + 1]])] for rank in range(4)})
    assert not found.has_strangers
