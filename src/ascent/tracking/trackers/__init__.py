"""What `trainer.report_to` names: TensorBoard, trackio, SwanLab, W&B and MLflow, each with the run directory as its
place. transformers' callbacks feed them; what these need, and what they lack, is here."""
