"""Pictures of a bucket, trained on for two epochs and evaluated by a data set of another order: the labels are those of the folders."""

import json
import sys

import numpy as np

import pinfeed
from pinfeed import transforms as T

train = pinfeed.ImageFolder(sys.argv[1], T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToTensor()]))
with pinfeed.DataLoader(train, batch_size=8, shuffle=True, seed=1, drop_last=True, num_workers=3, output="numpy") as loader:
    means = [images.mean() for _ in range(2) for images, labels in loader]

plain = pinfeed.ImageFolder(sys.argv[1], T.eval(8, resize=8), classes=["fox", "dog", "cat"])
labels = np.concatenate([labels for _, labels in pinfeed.DataLoader(plain, batch_size=5, num_workers=2, output="numpy")])
names = [plain.classes[label] for label in labels]
right = names == [path.split("/")[0] for path, _ in plain.samples] and len(means) == 6 and 0 < float(np.mean(means)) < 1
print(json.dumps({"classes": train.classes, "right": bool(right)}))
