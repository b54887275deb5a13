"""A stream of Hugging Face's `datasets`, shuffled, on two ranks in processes of their own."""

import multiprocessing
import sys

import pinfeed


def stream(rank, ranks):
    import datasets
    from datasets.distributed import split_dataset_by_node

    datasets.disable_progress_bars()
    table = datasets.Dataset.from_dict({"x": list(range(240)), "y": [number % 3 for number in range(240)]})
    shuffled = table.to_iterable_dataset(num_shards=8).shuffle(seed=5, buffer_size=20)
    return split_dataset_by_node(shuffled, rank, ranks)


def rank(number, results):
    # (`datasets` splits the stream, so that the loader need not know of ranks.)
    loader = pinfeed.DataLoader(stream(number, 2), batch_size=12, num_workers=2, output="numpy")
    epochs = []
    for _ in range(2):
        batches = list(loader)
        assert all((batch["x"] % 3 == batch["y"]).all() for batch in batches)
        epochs.append([number for batch in batches for number in batch["x"].tolist()])
    results.put(epochs)


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    processes = [spawn.Process(target=rank, args=(number, results)) for number in range(2)]
    for process in processes:
        process.start()
    (first, again), (other, other_again) = results.get(), results.get()
    for process in processes:
        process.join()
    print(len(first), len(other), sorted(first + other) == list(range(240)), sorted(again + other_again) == list(range(240)), first != again)
    sys.exit()
